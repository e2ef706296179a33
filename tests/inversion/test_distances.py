"""Distances against formulas written out in numpy on gradients made by torch's own backward."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import Gradient
from leakgauge.errors import BadInput
from leakgauge.inversion import (
    L1,
    L2,
    BalancedCosine,
    ByName,
    Cosine,
    Decaying,
    Descent,
    Equal,
    LayerCosine,
    LayerNorms,
    Matching,
    Norm,
    TotalVariation,
)
from leakgauge.inversion.terms import Sum

NAMES = ("0.weight", "0.bias", "1.weight", "1.bias", "5.weight", "5.bias")
WEIGHTS = [
    (Equal(), dict.fromkeys(NAMES, 1.0)),
    (Decaying(2.0), {name: math.exp(-2.0 * place / 6) for place, name in enumerate(NAMES)}),
    (ByName({"0.weight": 2.0, "5.bias": 0.5}), {"0.weight": 2.0, "5.bias": 0.5}),
]


def by_hand(kind: str, g: dict, target: dict, w: dict) -> float:
    if kind == "l2":
        return sum(w[n] * np.sum((g[n] - target[n]) ** 2) for n in w)
    if kind == "l1":
        return sum(w[n] * np.sum(np.abs(g[n] - target[n])) for n in w)
    if kind == "layer norms":
        return sum(w[n] * math.sqrt(np.sum((g[n] - target[n]) ** 2)) for n in w)
    dot = sum(w[n] * np.sum(g[n] * target[n]) for n in w)
    lengths = [math.sqrt(sum(w[n] * np.sum(v[n] ** 2) for n in w)) for v in (g, target)]
    return 1 - dot / (lengths[0] * lengths[1])


def numpy_gradient(model, x, y) -> dict:
    twin = copy.deepcopy(model).double().eval()
    F.cross_entropy(twin(x.double()), y).backward()
    return {n: p.grad.numpy() for n, p in twin.named_parameters()}


@pytest.mark.parametrize(("weights", "table"), WEIGHTS, ids=repr)
@pytest.mark.parametrize(
    ("kind", "distance"), [("l2", L2), ("l1", L1), ("layer norms", LayerNorms), ("cosine", Cosine)]
)
def test_against_numpy(kind, distance, weights, table, tiny, victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(), batch_of(2)
    seen = seen_by(victim, Gradient(), x, y)
    guesses = torch.stack([batch_of(2, seed=s)[0] for s in (5, 6, 7)])
    target = numpy_gradient(tiny(), x, y)
    expected = [by_hand(kind, numpy_gradient(tiny(), guess, y), target, table) for guess in guesses]
    found = values_at(distance(weights), victim, seen, guesses)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("distance", [L2(), L1(), LayerNorms(), Cosine()], ids=repr)
def test_zero_at_the_truth(distance, victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(), batch_of(2)
    found = values_at(distance, victim, seen_by(victim, Gradient(), x, y), x[None])
    assert abs(float(found)) < 1e-5


def test_cosine_ignores_the_length(victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(), batch_of(2)
    guess = batch_of(2, seed=9)[0][None]

    class Times:
        def __call__(self, signal, /, *, rng):
            return {n: 1000 * t for n, t in signal.items()}

    plain, scaled = (
        values_at(Cosine(), victim, seen_by(victim, Gradient(), x, y, defenses=defenses), guess)
        for defenses in ((), (Times(),))
    )
    torch.testing.assert_close(plain, scaled)


class Dead(nn.Module):
    """Its shared first layer gets no gradient where the image is dark: ReLU of x - 1/2."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(36)), nn.Linear(36, 4)

    def forward(self, x):
        return self.head((self.scale * x.flatten(1) - 0.5).relu())


def test_a_gradient_of_zero_has_no_direction_and_does_no_harm(victim_of, batch_of, seen_by, start_at):
    """With the head withheld, a dark candidate's gradient is zero: distance 1, and the other restarts go on."""
    victim, (_, y) = victim_of(Dead()), batch_of(1)
    seen = seen_by(victim, Gradient(), torch.full((1, 1, 6, 6), 0.9), y)
    object.__setattr__(seen, "signal", {"scale": seen.signal["scale"]})
    start = torch.stack([torch.zeros(1, 1, 6, 6), torch.rand(1, 1, 6, 6) * 0.4 + 0.55])
    result = Matching(Cosine(), start=start_at(start), solver=Descent(steps=3), restarts=2)(victim, seen)
    assert float(result.trace.losses[0, 0]) == 1.0
    assert torch.isfinite(result.trace.losses).all()
    assert torch.isfinite(result.trace.snapshots).all()
    assert torch.isfinite(result.candidates).all()


def test_unknown_weights_are_refused(victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(), batch_of(1)
    with pytest.raises(BadInput, match=r"no tensor 'head\.weight'"):
        values_at(L2(ByName({"head.weight": 1.0})), victim, seen_by(victim, Gradient(), x, y), x[None])


def test_an_objective_reads_like_its_equation(victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(), batch_of(1)
    seen, guess = seen_by(victim, Gradient(), x, y), batch_of(1, seed=3)[0][None]
    objective = 2 * (Cosine() + 0.5 * TotalVariation()) + Norm() * 3
    parts = [float(values_at(t, victim, seen, guess)) for t in (Cosine(), TotalVariation(), Norm())]
    assert float(values_at(objective, victim, seen, guess)) == pytest.approx(2 * parts[0] + parts[1] + 3 * parts[2])
    assert repr(objective) == "2 * Cosine(weights=Equal()) + TotalVariation() + 3 * Norm()"
    assert repr(objective.without_signal()) == "TotalVariation() + 3 * Norm()"
    assert repr(Sum()) == "nothing"


def test_a_weight_of_zero_costs_nothing(victim_of, batch_of, seen_by, values_at):
    """A term that would refuse is never asked."""
    victim, (x, y) = victim_of(), batch_of(1)
    objective = L2() + 0.0 * L1(ByName({"nowhere": 1.0}))
    assert float(values_at(objective, victim, seen_by(victim, Gradient(), x, y), x[None])) < 1e-9


def test_balanced_cosine_by_hand(victim_of, batch_of, seen_by, values_at):
    """Against the formula, written with the gradients themselves."""
    victim, (x, y) = victim_of(), batch_of(1)
    seen, guess = seen_by(victim, Gradient(), x, y), batch_of(1, seed=3)[0]
    own, other = Gradient()(victim, guess, y), seen.signal
    for power in (0.0, 0.5, 1.0):
        weight = {n: other[n].norm() ** (2 * power - 2) for n in other if other[n].norm() > 0}
        dot, one, two = (
            sum(weight[n] * (a[n] * b[n]).sum() for n in weight) for a, b in ((own, other), (own, own), (other, other))
        )
        expected = 1 - float(dot / (one * two).sqrt())
        assert float(values_at(BalancedCosine(power), victim, seen, guess[None])) == pytest.approx(expected, abs=1e-5)
    plain = float(values_at(Cosine(), victim, seen, guess[None]))
    assert float(values_at(BalancedCosine(1.0), victim, seen, guess[None])) == pytest.approx(plain, abs=1e-5)


def test_layer_cosine_by_hand(victim_of, batch_of, seen_by, values_at):
    victim, (x, y) = victim_of(), batch_of(1)
    seen, guess = seen_by(victim, Gradient(), x, y), batch_of(1, seed=3)[0]
    own = Gradient()(victim, guess, y)
    each = [1 - torch.cosine_similarity(own[n].flatten(), t.flatten(), dim=0) for n, t in seen.signal.items()]
    expected = float(torch.stack(each).mean())
    assert float(values_at(LayerCosine(), victim, seen, guess[None])) == pytest.approx(expected, abs=1e-5)
