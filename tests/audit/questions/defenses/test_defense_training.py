"""What a defense costs in accuracy: a short training with and without it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from leakgauge.audit.questions.defense_measures import Training, accuracy, classified, fresh
from leakgauge.defenses import GaussianNoise, Prune
from leakgauge.errors import Inapplicable
from leakgauge.models import ViT

HOW = Training(steps=60, batch=32, seed=0)


def test_fresh_weights_keep_nothing_that_was_learned(setup):
    model = ViT()
    model.head.weight.requires_grad_(False)
    before = {n: p.clone() for n, p in model.named_parameters()}
    made = dict(fresh(model, seed=3, device=torch.device("cpu")).named_parameters())
    again = dict(fresh(model, seed=3, device=torch.device("cpu")).named_parameters())
    assert all(torch.equal(made[n], again[n]) for n in made)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert torch.equal(made["head.weight"], before["head.weight"])
    (name,) = [n for n in made if "pos" in n]
    assert not torch.equal(made[name], before[name])
    assert torch.equal(made[name].flatten().sort().values, before[name].flatten().sort().values)
    changed = [n for n, p in made.items() if p.ndim > 1 and n != "head.weight"]
    assert all(not torch.equal(made[n], before[n]) for n in changed)


def test_the_training_is_plain_adam_on_the_same_batches(setup):
    """Against a loop written with modules, on the split and order that the seed gives."""
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0))
    held_out, train = order[:120], order[120:]
    rng = torch.Generator().manual_seed(1)
    rows = torch.cat([train[torch.randperm(120, generator=rng)] for _ in range(16)])
    model = fresh(setup.victim.model, seed=0, device=torch.device("cpu")).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(60):
        at = rows[step * 32 : (step + 1) * 32]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(setup.images[at]), setup.labels[at]).backward()
        optimizer.step()
    expected = model.eval()(setup.images[held_out]).argmax(1) == setup.labels[held_out]
    right = classified(setup, (), HOW)
    assert torch.equal(right, expected)
    assert right.double().mean() > 0.9


def test_a_defense_that_lets_nothing_through_costs_what_was_to_be_learned(setup):
    without = classified(setup, (), HOW)
    free = accuracy(setup, classified(setup, (GaussianNoise(relative=0.0),), HOW), without, HOW)
    assert free["cost"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert (free["images"], free["trained_on"], free["steps"], free["batch"]) == (120, 120, 60, 32)
    nothing = accuracy(setup, classified(setup, (Prune(1.0),), HOW), without, HOW)
    assert nothing["value"] < 0.6
    assert nothing["cost"]["value"] == pytest.approx(free["value"] - nothing["value"])
    assert 0 < nothing["cost"]["low"] < nothing["cost"]["value"] < nothing["cost"]["high"]
    assert nothing["low"] < nothing["value"] < nothing["high"]


def test_predictions_that_are_no_numbers_are_wrong(setup):
    def broken(signal, *, rng):
        return {name: t * math.nan for name, t in signal.items()}

    assert not classified(setup, (broken,), HOW).any()


def test_an_accuracy_is_unknown_rather_than_invented(setup, setup_of):
    with pytest.raises(Inapplicable, match="at least 200 images"):
        classified(setup_of(199), (), HOW)
    right = torch.zeros(120, dtype=torch.bool)
    right[:30] = True
    found = accuracy(setup, right, right, HOW)
    assert found["cost"] is None
    assert "no better than the commonest class" in found["unknown"]
    assert "did not come to its end" in accuracy(setup, right, None, HOW)["unknown"]
