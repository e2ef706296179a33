"""Samples separated at the head, against features and labels that the test drew itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from leakgauge.audit.case import Case
from leakgauge.audit.session import embedded
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Size, share
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import Inapplicable
from leakgauge.inversion import Adam, Cosine, Descent, HeadFeatures, Matching
from leakgauge.inversion.head_samples import _guesses, separate_at_head
from leakgauge.inversion.labels import SeparatedLabels, infer_labels, read_class_labels
from leakgauge.inversion.output_gradient import order_at_head, samples_at_head

CLASSES, WIDTH = 10, 24


def drawn(labels, *, positive=True, sure=1.0, seed=0):
    """A head, features with these labels and the gradient that a client shares: (slope, head, features, outputs)."""
    rng = torch.Generator().manual_seed(seed)
    head = torch.randn(CLASSES, WIDTH + 1, generator=rng) * 0.5
    h = torch.randn(len(labels), WIDTH, generator=rng)
    h = sure * (h.abs() if positive else h)
    inputs = torch.cat((h, torch.ones(len(h), 1)), 1).requires_grad_()
    weight = head.clone().requires_grad_()
    F.cross_entropy(inputs @ weight.T, labels).backward()
    outputs = (inputs @ head.T).detach().double().softmax(1) - F.one_hot(labels, CLASSES)
    return weight.grad, head, h, outputs


def likely(seed=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.cat((torch.rand(32, WIDTH, generator=rng), torch.ones(32, 1)), 1)


@pytest.mark.parametrize("positive", [True, False], ids=["features >= 0", "features of any sign"])
@pytest.mark.parametrize("labels", [[3, 1, 8, 3], [0, 0, 0, 7], [2, 5]], ids=str)
def test_labels_outputs_and_features_of_every_sample_are_exact(labels, positive):
    y = torch.tensor(labels)
    slope, head, h, outputs = drawn(y, positive=positive)
    found = separate_at_head(slope, head, likely(), size=len(y))
    assert found.seen == len(y)
    assert sorted(found.labels.tolist()) == sorted(labels)
    nearest = torch.cdist(h.double(), found.features).min(1)
    assert float(nearest.values.max()) < 1e-2 * float(h.norm(dim=1).min())
    assert sorted(nearest.indices.tolist()) == list(range(len(y)))
    torch.testing.assert_close(found.outputs[nearest.indices], outputs, rtol=0, atol=1e-3)
    assert torch.equal(found.labels[nearest.indices], y)


def test_a_sample_without_a_gradient_is_not_seen_and_not_invented():
    """The client's own rounding makes p − y exactly zero for one sample: the others are separated, its row is next to nothing."""
    y = torch.tensor([4, 6, 1])
    _, head, h, outputs = drawn(y)
    outputs[2] = 0
    inputs = torch.cat((h, torch.ones(3, 1)), 1).double()
    found = separate_at_head((outputs.T @ inputs / 3).float(), head, likely(), size=3)
    assert found.seen == 2
    assert sorted(found.labels[:2].tolist()) == [4, 6]
    assert float(found.outputs[2].abs().max()) < 1e-9


def faded(labels, margins, *, seed=0):
    """As :func:`drawn`, in float64 until it is shared, with every sample's class ahead of the next one by its margin."""
    rng = torch.Generator().manual_seed(seed)
    head = torch.randn(CLASSES, WIDTH + 1, generator=rng).double() * 0.5
    h = torch.randn(len(labels), WIDTH, generator=rng).double().abs()
    scores = torch.cat((h, torch.ones(len(h), 1)), 1) @ head.T
    others = scores.masked_fill(F.one_hot(labels, CLASSES).bool(), -torch.inf).max(1).values
    wanted = (
        F.one_hot(labels, CLASSES) * (others + torch.tensor(margins) - scores.gather(1, labels[:, None])[:, 0])[:, None]
    )
    h = h + wanted @ torch.linalg.pinv(head[:, :-1]).T
    inputs = torch.cat((h, torch.ones(len(h), 1)), 1)
    outputs = (inputs @ head.T).softmax(1) - F.one_hot(labels, CLASSES)
    return (outputs.T @ inputs / len(labels)).float(), head.float(), h, outputs


@pytest.mark.parametrize(
    ("labels", "margins"),
    [
        ([3, 1, 8, 2], [0, 0, 12, 13]),
        ([5, 5, 0, 9], [0, 8, 9, 16]),
        ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 9, 12, 13, 13, 14, 14]),
    ],
    ids=["two loud of four", "one loud of four", "more than half as many samples as classes"],
)
def test_loud_samples_are_separated_beside_those_that_a_network_is_sure_of(labels, margins):
    y = torch.tensor(labels)
    slope, head, h, outputs = faded(y, margins)
    found = separate_at_head(slope, head, likely(), size=len(y))
    loud = sum(margin < 2 for margin in margins)
    assert loud <= found.seen
    nearest = torch.cdist(h[:loud], found.features[: found.seen]).min(1)
    assert float(nearest.values.max()) < 0.05 * float(h.norm(dim=1).min())
    assert torch.equal(found.labels[nearest.indices], y[:loud])
    torch.testing.assert_close(found.outputs[nearest.indices], outputs[:loud], rtol=0, atol=0.02)
    assert found.left < 0.01


def test_the_gradient_shows_labels_of_samples_that_are_not_separated():
    """Each has an entry of its own below zero, as features after a ReLU are never negative."""
    rest = torch.zeros(CLASSES, 3)
    rest[6], rest[2], rest[4] = -2.0, -1.0, 3.0
    assert _guesses(rest, 2).tolist() == [6, 2]
    assert _guesses(rest, 4).tolist() == [6, 2, 6, 6]
    assert len(_guesses(rest, 0)) == 0


def test_what_is_left_is_the_share_that_the_samples_do_not_explain():
    y = torch.tensor([3, 1, 8])
    slope, head, _, _ = faded(y, [0, 0, 30])
    found = separate_at_head(slope, head, likely(), size=3)
    assert found.seen == 2
    assert found.left < 1e-5
    made = found.outputs[:2].T @ torch.cat((found.features[:2], torch.ones(2, 1).double()), 1) / 3
    assert float((made - slope).norm() / slope.norm()) == pytest.approx(found.left, abs=1e-6)


def test_noise_and_too_many_samples_are_refused():
    y = torch.tensor([1, 2, 3])
    slope, head, _, _ = drawn(y)
    noisy = slope + 1e-3 * slope.norm() * torch.randn(slope.shape, generator=torch.Generator().manual_seed(0))
    with pytest.raises(Inapplicable, match=r"shows (9|10) samples"):
        separate_at_head(noisy, head, likely(), size=3)
    slope, head, _, _ = drawn(torch.arange(7))
    with pytest.raises(Inapplicable, match="at most 5 samples of 10 classes can be separated"):
        separate_at_head(slope, head, likely(), size=7)


def test_another_head_explains_nothing():
    """With the wrong public weights no sample fits, and nothing is claimed."""
    slope, head, _, _ = drawn(torch.tensor([1, 2, 3]))
    with pytest.raises(Inapplicable, match="of 3, leave"):
        separate_at_head(slope, head.flip(0), likely(), size=3)


@pytest.fixture(scope="module")
def trained():
    setup = embedded(Case(model="vgg", batch_size=3))
    return setup.victim, setup.victim.space.encode(setup.images[20:23]), setup.labels[20:23]


def test_a_trained_network_gives_its_labels_away_and_the_truth_fits_in_any_order(trained):
    victim, x, y = trained
    seen = share(victim, Gradient(), x, y, reveal=(Size(),))
    read = read_class_labels(infer_labels(), victim, seen, rng=torch.Generator().manual_seed(0))
    assert sorted(read.labels.tolist()) == sorted(y.tolist())
    assert read.accuracy == 1.0
    attack = Matching(Cosine() + 1.0 * HeadFeatures(), solver=Descent(Adam(0.1), 2), along=True)
    for order in ([0, 1, 2], [2, 0, 1]):
        assert attack.objective_at(victim, seen, x[order], y[order]) < 1e-5
    found = attack(victim, seen, seed=0)
    assert found.y.tolist() == samples_at_head(victim, seen).labels.tolist()
    assert any("read from the head, where all samples were separated" in note for note in found.notes)
    told = samples_at_head(victim, seen).labels
    assert torch.equal(y[order_at_head(victim, seen, x)], told)


@pytest.mark.parametrize(
    ("channel", "defenses"), [(FedAvg(steps=2, lr=0.1), ()), (Gradient(), (GaussianNoise(relative=0.1),))]
)
def test_what_is_no_plain_gradient_is_refused(trained, channel, defenses):
    victim, x, y = trained
    seen = share(victim, channel, x, y, defenses=defenses, reveal=(Size(),))
    with pytest.raises(Inapplicable):
        SeparatedLabels()(victim, seen, rng=torch.Generator())
