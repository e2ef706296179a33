"""Inputs of the fully connected layers beneath the head, against those that the network itself computed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Size, Victim, share
from leakgauge.engine.reference import capturing
from leakgauge.inversion import Adam, Cosine, Descent, HeadFeatures, Matching
from leakgauge.inversion.beneath_head import links_beneath, walk_down
from leakgauge.inversion.output_gradient import along_output, samples_at_head

SPACE = Pixels((1, 8, 8))
LABELS = torch.tensor([3, 1, 8, 3])


def dense(activation, *, between=(), bias=True):
    """1: the first layer; 4 or later: the head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = nn.Linear(64, 48, bias=bias), nn.Linear(48, 32)
        return nn.Sequential(nn.Flatten(), first, activation, second, activation, *between, nn.Linear(32, 10))


def weight_normed():
    model = dense(nn.ReLU())
    nn.utils.parametrizations.weight_norm(model[3])
    return model


def seen_of(model, *, mode="eval", seed=0):
    victim = Victim(model, SPACE, mode=mode)
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    return victim, x, share(victim, Gradient(), x, LABELS, reveal=(Size(),))


@pytest.mark.parametrize(
    "activation",
    [nn.ReLU(), nn.LeakyReLU(), nn.Tanh(), nn.Sigmoid(), nn.Identity()],
    ids=lambda one: type(one).__name__,
)
def test_inputs_of_the_first_layer_are_those_of_every_sample(activation):
    victim, x, seen = seen_of(dense(activation))
    found = samples_at_head(victim, seen)
    assert found.layer == "1"
    nearest = torch.cdist(x.flatten(1).double(), found.inputs).min(1)
    assert sorted(nearest.indices.tolist()) == [0, 1, 2, 3]
    assert float(nearest.values.max()) < 2e-3 * float(x.flatten(1).norm(dim=1).min())
    assert torch.equal(found.labels[nearest.indices], LABELS)
    assert float(found.error.max()) < 5e-3


def test_behind_convolutions_the_first_dense_layer_is_reached_and_its_inputs_are_searched_for():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 40), nn.ReLU(), nn.Linear(40, 10)
        )
    victim, x, seen = seen_of(model)
    with capturing(model, ["3"]) as entered, torch.no_grad():
        model(x)
    found = samples_at_head(victim, seen)
    assert found.layer == "3"
    assert float(torch.cdist(entered["3"].double(), found.inputs).min(1).values.max()) < 1e-3
    followed = along_output(victim, [seen])
    assert followed is not None
    assert followed.loss.layer == "3"
    features = Matching(HeadFeatures(), solver=Descent(Adam(0.1), 2), along=True)
    assert features.objective_at(victim, seen, x, LABELS) < 1e-8
    assert features.objective_at(victim, seen, 1 - x, LABELS) > 0.01
    attack = Matching(Cosine() + 1.0 * HeadFeatures(), solver=Descent(Adam(0.1), 2), along=True)
    assert sorted(attack(victim, seen, seed=0).y.tolist()) == sorted(LABELS.tolist())


@pytest.mark.parametrize(
    ("model", "mode", "reaches"),
    [
        # with units dropped the features are not those of the public model, but the head's equations hold
        (dense(nn.ReLU(), between=(nn.Dropout(0.5),)), "train", "6"),
        (weight_normed(), "eval", "5"),
        (dense(nn.GELU()), "eval", "5"),
        (dense(nn.ReLU(), bias=False), "eval", "3"),
        (dense(nn.ReLU(), between=(nn.LayerNorm(32),)), "eval", "6"),
    ],
    ids=["dropout", "weights of two parameters", "no inverse", "no bias", "a normalisation"],
)
def test_the_walk_ends_where_the_next_layer_cannot_be_passed(model, mode, reaches):
    victim, _, seen = seen_of(model, mode=mode)
    assert samples_at_head(victim, seen).layer == reaches


def test_a_gradient_of_another_batch_is_not_explained():
    victim, _, seen = seen_of(dense(nn.Tanh()))
    found = samples_at_head(victim, seen)
    shared = {name: 4 * value for name, value in seen.signal.items()}
    other = {name: 4 * value for name, value in seen_of(dense(nn.Tanh()), seed=1)[2].signal.items()}
    links, told = links_beneath(victim, "5"), (found.outputs, found.features)
    assert walk_down(victim, "5", links, shared, *told).layer == "1"
    assert walk_down(victim, "5", links, {**shared, "3.weight": other["3.weight"]}, *told).layer == "5"
    assert walk_down(victim, "5", links, {**shared, "1.bias": other["1.bias"]}, *told).layer == "3"
    assert walk_down(victim, "5", links, {n: v for n, v in shared.items() if n != "3.bias"}, *told).layer == "5"


def test_what_another_update_showed_is_not_remembered_where_it_is_withheld():
    victim, _, seen = seen_of(dense(nn.Tanh()))
    assert samples_at_head(victim, seen).layer == "1"
    for withheld, reaches in (("1.weight", "3"), ("1.bias", "3"), ("3.weight", "5")):
        part = {name: value for name, value in seen.signal.items() if name != withheld}
        assert samples_at_head(victim, replace(seen, signal=part)).layer == reaches


def test_without_gradients_of_its_own_the_caller_gets_the_same():
    victim, _, seen = seen_of(dense(nn.Tanh()), seed=2)
    with torch.no_grad():
        assert samples_at_head(victim, seen).layer == "1"


@pytest.mark.parametrize("hidden", [(), (48,)], ids=["softmax regression", "one hidden layer"])
@pytest.mark.parametrize("labels", [(0, 1, 2), (7, 2, 5)])
def test_a_head_of_zeros_gives_its_inputs(hidden, labels):
    """Before the first step every class is as likely, and the scores fix no features; labels that differ do."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), *(m for width in hidden for m in (nn.Linear(64, width), nn.Tanh())))
        head = nn.Linear(hidden[-1] if hidden else 64, 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    victim = Victim(model.append(head), SPACE)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    found = samples_at_head(victim, share(victim, Gradient(), x, torch.tensor(labels), reveal=(Size(),)))
    with torch.no_grad():
        own = model[:-1](x).double()
    nearest = torch.cdist(own, found.inputs).min(1)
    assert found.layer == str(len(model) - 1)
    assert float(nearest.values.max()) < 1e-4
    assert found.labels[nearest.indices].tolist() == list(labels)


def test_a_sum_of_losses_is_read_as_their_mean():
    victim, x, _ = seen_of(dense(nn.Tanh()))
    victim = Victim(victim.model, SPACE, loss=nn.CrossEntropyLoss(reduction="sum"))
    found = samples_at_head(victim, share(victim, Gradient(), x, LABELS, reveal=(Size(),)))
    assert found.layer == "1"
    assert F.mse_loss(found.inputs.sum(0), x.flatten(1).double().sum(0)) < 1e-6
