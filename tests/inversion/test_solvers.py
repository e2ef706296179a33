"""Solvers and schedules against torch's own optimizers and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.core import Pixels
from leakgauge.errors import BadInput
from leakgauge.inversion import LBFGS, Adam, AdamW, CosineDecay, Descent, Sign, Steady, StepDecay
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.solvers import Moving

SPACE = Pixels((1, 2, 2), bounds=(-1.0, 1.0))
TARGET = torch.tensor([[0.9, -0.5], [3.0, 0.1]])


def quadratic(x, logits=None, rows=slice(None)):
    """Each restart has its own curvature, so a mix-up of restarts shows."""
    curvature = torch.arange(1.0, 4.0)[rows].view(-1, 1, 1, 1, 1)
    total = (curvature * (x - TARGET) ** 2).sum((1, 2, 3, 4))
    return total if logits is None else total + (logits - 2).square().sum((1, 2))


def solved(solver, *, logits=None):
    """Where the search ends, candidates and logits: what a solver last asks the loss of."""
    x = torch.zeros(3, 1, 1, 2, 2, requires_grad=True)
    last = [x.detach().clone(), None if logits is None else logits.detach().clone()]

    def losses(x, logits, rows):
        for kept, given_ in zip(last, (x, logits), strict=True):
            if kept is not None:
                kept[rows] = given_.detach()
        return quadratic(x, logits, rows)

    move = solver.begin(Moving(x=x, logits=logits, losses=losses, space=SPACE, draws=Draws.of(len(x))))
    for number in range(solver.steps):
        move(number)
    move.judge()
    return last[0] if logits is None else last


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(0.1), lambda v: torch.optim.Adam(v, lr=0.1)),
        (Adam(0.05, (0.5, 0.9)), lambda v: torch.optim.Adam(v, lr=0.05, betas=(0.5, 0.9))),
        (AdamW(0.1, weight_decay=0.3), lambda v: torch.optim.AdamW(v, lr=0.1, weight_decay=0.3)),
    ],
    ids=["Adam", "Adam with other betas", "AdamW"],
)
@pytest.mark.parametrize("sign", [False, True])
@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("schedule", [Steady(), StepDecay()])
def test_descent_is_torchs_optimizer_restart_by_restart(ours, theirs, sign, project, schedule):
    found = solved(Descent(ours, 17, gradient=(Sign(),) if sign else (), schedule=schedule, project=project))
    for restart in range(3):
        x = torch.zeros(1, 1, 2, 2, requires_grad=True)
        optimizer = theirs([x])
        lr = optimizer.param_groups[0]["lr"]
        for number in range(17):
            optimizer.zero_grad()
            ((restart + 1) * (x - TARGET) ** 2).sum().backward()
            if sign:
                x.grad.sign_()
            optimizer.param_groups[0]["lr"] = lr * schedule(number / 17)
            optimizer.step()
            if project:
                x.data.clamp_(-1, 1)
        torch.testing.assert_close(found[restart], x.detach())


def test_projection_stops_at_the_box():
    assert solved(Descent(Adam(0.5), 100))[..., 1, 0].unique().tolist() == [1.0]
    assert float(solved(Descent(Adam(0.5), 100, project=False))[..., 1, 0].min()) > 2


def test_label_logits_move_along_and_are_not_projected_or_signed():
    logits = torch.zeros(3, 1, 5, requires_grad=True)
    _, found = solved(Descent(Adam(0.1), 300, gradient=(Sign(),)), logits=logits)
    torch.testing.assert_close(found, torch.full((3, 1, 5), 2.0), atol=1e-2, rtol=0)


@pytest.mark.parametrize("line_search", [False, True])
def test_lbfgs_is_torchs_restart_by_restart(line_search):
    solver = LBFGS(lr=0.5, steps=2, iterations=3, history=5, line_search=line_search)
    found = solved(solver)
    for restart in range(3):
        x = torch.zeros(1, 1, 1, 2, 2, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [x], lr=0.5, max_iter=3, history_size=5, line_search_fn="strong_wolfe" if line_search else None
        )

        def closure(x=x, optimizer=optimizer, restart=restart):
            optimizer.zero_grad()
            loss = ((restart + 1) * (x - TARGET) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        torch.testing.assert_close(found[restart], x.detach()[0])


def test_lbfgs_reaches_the_minimum_with_labels():
    logits = torch.zeros(3, 1, 5, requires_grad=True)
    found, labels = solved(LBFGS(steps=5, line_search=True), logits=logits)
    torch.testing.assert_close(found, TARGET.expand_as(found), atol=1e-4, rtol=0)
    torch.testing.assert_close(labels, torch.full((3, 1, 5), 2.0), atol=1e-4, rtol=0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5000))
def test_step_decay_falls_at_three_eighths_and_so_on(steps):
    """Geiping et al. multiply by 0.1 at 3/8, 5/8 and 7/8 of the run, as torch's MultiStepLR would."""
    for number in {0, steps // 4, steps // 2, 3 * steps // 4, steps - 1}:
        passed = sum(8 * number >= k * steps for k in (3, 5, 7))
        assert StepDecay()(number / steps) == pytest.approx(0.1**passed)


def test_other_schedules():
    assert [Steady()(p) for p in (0, 0.5, 0.99)] == [1, 1, 1]
    assert CosineDecay()(0.0) == 1
    assert CosineDecay()(0.5) == pytest.approx(0.5)
    assert CosineDecay()(1 / 3) == pytest.approx((1 + math.cos(math.pi / 3)) / 2)
    assert StepDecay(at=(0.5,), factor=0.5)(0.5) == 0.5


@pytest.mark.parametrize("solver", [Descent, LBFGS])
@pytest.mark.parametrize("steps", [0, -3, 2.5, "many"])
def test_steps_are_a_positive_number(solver, steps):
    with pytest.raises(BadInput, match="steps of at least 1"):
        solver(steps=steps)


@pytest.mark.parametrize("optimizer", [Adam, AdamW, LBFGS])
@pytest.mark.parametrize("lr", [0, -0.1, float("nan"), "fast"])
def test_learning_rates_are_positive(optimizer, lr):
    with pytest.raises(BadInput, match="positive learning rate"):
        optimizer(lr=lr)


def test_noise_of_a_step_is_as_large_as_the_learning_rate_says():
    """On a flat objective the optimizer stands still and only the noise moves: noise · λ(t) · N(0, 1) summed over steps."""
    x = torch.zeros(2, 1, 1, 2, 2, requires_grad=True)
    draws = Draws.of(2, seed=9)
    solver = Descent(Adam(0.1), 5, schedule=CosineDecay(), project=False, noise=0.3)
    move = solver.begin(Moving(x=x, losses=lambda x, logits, rows: 0 * x.sum((1, 2, 3, 4)), space=SPACE, draws=draws))
    for number in range(5):
        move(number)
    expected = sum(0.3 * 0.1 * CosineDecay()(n / 5) * draws.normal(n, x) for n in range(5))
    torch.testing.assert_close(x.detach(), expected)
    with pytest.raises(BadInput, match="must not be negative"):
        Descent(noise=-0.1)
