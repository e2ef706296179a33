"""Images of small batches without a search, and certificates that must never be wrong."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import small_batches, strongest
from leakgauge.channels import Aggregate, FedAvg, Gradient
from leakgauge.core import Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import Inapplicable
from leakgauge.inversion.output_gradient import samples_at_head
from leakgauge.models import CNN, MLP
from tests.attacks.fashion_batches import SPACE, batch, decibels


def trained(activation, steps=60):
    images, labels = fashion("train")
    x, y = SPACE.encode(images[:512]), labels[:512]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), activation, nn.Linear(64, 10))
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(steps):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()
    return Victim(model, SPACE)


def surer(victim, x, y, margin):
    """The head's weight is changed until the first sample's own score leads by ``margin``."""
    with torch.no_grad():
        hidden, score = victim.model[:-1](x)[0], victim(x)[0]
        step = torch.outer(F.one_hot(y[0], 10) - 0.1, hidden) / hidden.square().sum()
        others = F.one_hot(y[0], 10) == 0
        victim.model[-1].weight += (margin - float(score[y[0]] - score[others].max())) * step


def certified_rightly(victim, x, y):
    """What the attack finds, if it is not refused; every certified image is exact."""
    try:
        found = small_batches()(victim, share(victim, Gradient(), x, y, reveal=(Size(),)))
    except Inapplicable:
        return None
    assert found.certified is not None
    assert (decibels(found.x[found.certified], x) > 60).all()
    return found


@pytest.mark.parametrize(
    ("activation", "least"), [(nn.ReLU(), 4), (nn.Tanh(), 6), (nn.Sigmoid(), 6)], ids=["relu", "tanh", "sigmoid"]
)
def test_images_of_a_trained_network_are_exact_and_certified(activation, least):
    """Six batches of three; behind a ReLU two of them hold an image that the network is too sure of."""
    victim, whole = trained(activation), 0
    for x, y in (batch(3, seed) for seed in range(6)):
        found = certified_rightly(victim, x, y)
        if found is not None:
            order = torch.cdist(x.flatten(1), found.x.flatten(1)).argmin(1)
            whole += torch.equal(found.y[order], y) and bool((decibels(x, found.x) > 60).all())
    assert whole >= least


def test_strongest_ends_with_it():
    victim, (x, y) = trained(nn.Tanh()), batch(3)
    found = strongest(steps=20)(victim, share(victim, Gradient(), x, y, reveal=(Size(),)), seed=0)
    assert next(one.name for one in found.raced if one.chosen) == "small_batches"
    assert decibels(x, found.x).min() > 60


@pytest.mark.parametrize(("margin", "seed"), [(13.0, 4), (14.0, 3), (14.0, 4)])
def test_strongest_does_not_end_before_a_faint_sample_is_read(margin, seed):
    """A sample that counts 1e-6 of the other hardly changes a mismatch of squares."""
    victim, (x, y) = trained(nn.Tanh()), batch(2, seed)
    surer(victim, x, y, margin)
    found = strongest(steps=20)(victim, share(victim, Gradient(), x, y, reveal=(Size(),)), seed=0)
    assert decibels(x, found.x).min() > 40


def test_a_sample_that_leaves_no_trace_is_grey_and_not_certified():
    victim, (x, y) = trained(nn.Tanh()), batch(2)
    surer(victim, x, y, 60)  # so sure of one image that nothing of it is left in float32
    assert float(victim(x).softmax(1)[0, y[0]]) == 1
    found = small_batches()(victim, share(victim, Gradient(), x, y, reveal=(Size(),)))
    assert found.certified is not None
    assert found.certified.tolist() == [True, False]
    assert decibels(found.x[:1], x[1:]) > 60
    assert "1 of 2 samples" in found.notes[0]


@pytest.mark.parametrize("margin", [11.0, 12.0, 13.0, 14.0])
def test_a_faint_sample_is_certified_only_if_it_is_exact(margin):
    """Of p − y of one sample, 1e-5 to 1e-6, float32 keeps a few digits. The other sample of each batch is always exact."""
    certified = 0
    for seed in range(6):
        victim, (x, y) = trained(nn.Tanh()), batch(2, seed)
        surer(victim, x, y, margin)
        found = certified_rightly(victim, x, y)
        certified += 0 if found is None else int(found.certified.sum())
    assert certified >= 5


def test_a_softmax_regression_is_read():
    images, labels = fashion("train")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(model(SPACE.encode(images[:512])), labels[:512]).backward()
        optimiser.step()
    victim, (x, y) = Victim(model, SPACE), batch(3, seed=2)
    found = small_batches()(victim, share(victim, Gradient(), x, y, reveal=(Size(),)))
    assert found.certified is not None
    assert bool(found.certified.all())
    assert decibels(x, found.x).min() > 60


def test_a_part_of_an_aggregate_is_not_certified():
    """Nothing is replayed for some of the clients' samples."""
    victim, (x, y) = trained(nn.Tanh()), batch(3)
    surer(victim, x, y, 60)
    found = small_batches()(victim, share(victim, Aggregate(3), x, y, reveal=(Size(),)))
    assert found.certified is not None
    assert not found.certified.any()


def test_what_the_replay_does_not_make_is_not_certified(monkeypatch):
    """Samples whose own equations hold, of an update that holds more."""
    victim, (x, y) = trained(nn.Tanh()), batch(3)
    seen = share(victim, Gradient(), x, y, reveal=(Size(),))
    found = samples_at_head(victim, seen)
    assert found.seen == 3
    part = replace(found, seen=2)
    module = importlib.import_module("leakgauge.attacks.small_batches")  # the package has a function of this name
    monkeypatch.setattr(module, "samples_at_head", lambda *_: part)
    made = small_batches()(victim, seen)
    assert made.certified is not None
    assert not made.certified.any()


def test_a_single_sample_is_a_small_batch():
    victim, (x, y) = trained(nn.Tanh()), batch(1)
    found = small_batches()(victim, share(victim, Gradient(), x, y, reveal=(Size(),)))
    assert found.certified is not None
    assert bool(found.certified)
    assert decibels(found.x, x) > 60


def test_what_it_cannot_read_is_refused():
    victim, (x, y) = trained(nn.Tanh()), batch(3)
    seen = share(victim, Gradient(), x, y, reveal=(Size(),))
    with pytest.raises(Inapplicable):
        small_batches()(
            victim, share(victim, Gradient(), x, y, defenses=(GaussianNoise(relative=0.1),), reveal=(Size(),))
        )
    with pytest.raises(Inapplicable):
        small_batches()(victim, share(victim, FedAvg(steps=3, lr=0.1), x, y, reveal=(Size(),)))
    cnn = Victim(CNN(), SPACE)
    with pytest.raises(Inapplicable, match="Linear first layer"):
        small_batches()(cnn, share(cnn, Gradient(), x, y, reveal=(Size(),)))
    with pytest.raises(Inapplicable, match="not shared"):
        small_batches()(victim, replace(seen, signal={n: v for n, v in seen.signal.items() if n != "3.bias"}))
    with pytest.raises(Inapplicable):  # weights that the client did not have
        small_batches()(trained(nn.Tanh(), steps=30), seen)


@pytest.mark.parametrize("seed", range(8))
def test_no_certificate_is_false(seed):
    """Narrow networks, and batches of one class."""
    classes, size = (10, 4) if seed % 2 else (4, 2)
    victim, (x, y) = Victim(MLP(hidden=(12 + 8 * seed,), classes=classes, seed=seed), SPACE), batch(size, seed)
    y = y % classes if seed < 4 else torch.zeros_like(y)
    found = small_batches()(victim, share(victim, Gradient(), x, y, reveal=(Size(),)))
    assert found.certified is not None
    assert found.certified.any()
    assert (decibels(found.x[found.certified], x) > 60).all()


@pytest.mark.parametrize(("classes", "size"), [(10, 6), (4, 3)])
def test_more_samples_than_half_the_classes_are_refused(classes, size):
    victim, (x, y) = Victim(MLP(hidden=(28,), classes=classes, seed=1), SPACE), batch(size, 1)
    seen = share(victim, Gradient(), x, y % classes, reveal=(Size(),))
    with pytest.raises(Inapplicable, match=f"at most {classes // 2} samples of {classes} classes can"):
        small_batches()(victim, seen)
