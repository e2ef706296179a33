import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.errors import BadInput
from leakgauge.measures.rdp import (
    ORDERS,
    Overspent,
    RDPFilter,
    joint_multiplier,
    remaining_multiplier,
    sampled_gaussian,
    spent_epsilon,
)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.25, 1.0])
@pytest.mark.parametrize("noise", [0.6, 1.0, 5.0])
def test_equals_opacus(noise, rate):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants.analysis.rdp import compute_rdp
    theirs = compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=list(ORDERS))
    ours = [sampled_gaussian(order, noise=noise, rate=rate) for order in ORDERS]
    assert ours == pytest.approx(list(theirs), rel=1e-6, abs=1e-12)


def test_order_two_by_integration():
    """E_Q (P/Q)² with P = (1-q)N(0,σ²) + qN(1,σ²) and Q = N(0,σ²)."""
    q, s = 0.3, 1.3
    at = np.linspace(-30, 30, 400_001)
    base = np.exp(-(at**2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi))
    other = np.exp(-((at - 1) ** 2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi))
    truth = math.log(np.trapezoid(((1 - q) * base + q * other) ** 2 / base, at))
    assert sampled_gaussian(2, noise=s, rate=q) == pytest.approx(truth, rel=1e-6)


def test_the_step_that_would_overspend_is_refused_and_changes_nothing():
    budget = RDPFilter(eps=3.0, delta=1e-5)
    taken = 0
    while budget.allows(noise=2.0, rate=0.02):
        budget = budget.spend(noise=2.0, rate=0.02)
        taken += 1
    assert 10 < taken < 10_000
    before = budget
    with pytest.raises(Overspent, match="add noise or stop"):
        budget.spend(noise=2.0, rate=0.02)
    assert budget == before
    assert budget.allows(noise=200.0, rate=0.1)  # a quieter step still fits


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 5.0), st.floats(0.0, 1.0)), max_size=40))
def test_never_more_than_the_budget_whatever_is_asked_for(asked):
    budget = RDPFilter(eps=3.0, delta=1e-4, orders=(2, 4, 8, 16))
    for noise, rate in asked:
        if budget.allows(noise=noise, rate=rate):
            budget = budget.spend(noise=noise, rate=rate)
    converted = [s + math.log(4 / 1e-4) / (a - 1) for s, a in zip(budget.spent, budget.orders, strict=True)]
    assert min(converted) <= 3.0 + 1e-12


@pytest.mark.parametrize(
    "options",
    [{"eps": 0.0, "delta": 1e-5}, {"eps": 1.0, "delta": 0.0}, {"eps": 1.0, "delta": 1e-5, "orders": (2,)}],
    ids=str,
)
def test_budgets_that_cannot_be_kept_are_refused(options):
    with pytest.raises(BadInput):
        RDPFilter(**options)


@pytest.mark.parametrize(("noise", "rate", "order"), [(0.0, 0.1, 2), (1.0, 1.5, 2), (1.0, 0.1, 1), (math.inf, 0.1, 2)])
def test_steps_without_meaning_are_refused(noise, rate, order):
    with pytest.raises(BadInput):
        sampled_gaussian(order, noise=noise, rate=rate)


def epsilon(*history):
    """ε at δ = 1e-5 of (multiplier, rate, steps) by Opacus' RDP accounting, its own orders and conversion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import RDPAccountant
    accountant = RDPAccountant()
    accountant.history = list(history)
    return accountant.get_epsilon(1e-5)


def test_what_a_private_statistic_costs():
    """1500 steps at q = 0.01, z = 1. Batches of its own for each query, or the training step's own batch."""
    q, steps = 0.01, 1500
    assert epsilon((1.0, q, steps)) == pytest.approx(2.5023, abs=5e-5)
    assert epsilon((1.0, q, steps), (5.0, q, 30)) == pytest.approx(2.5027, abs=5e-5)
    assert epsilon((1.0, q, steps), (2.0, q, 30)) == pytest.approx(2.5054, abs=5e-5)
    # at every step, σ_u = 5 on a sum of sensitivity 1/2, on the same batch
    assert epsilon((joint_multiplier(1.0, 2 * 5.0), q, steps)) == pytest.approx(2.5293, abs=5e-5)
    assert epsilon((1.0, q, steps), (10.0, q, steps)) == pytest.approx(2.5078, abs=5e-5)
    # to ask the training step's own batch costs more than batches drawn apart
    shared = [epsilon((1.0, q, steps - 30), (joint_multiplier(1.0, z), q, 30)) for z in (5.0, 2.0)]
    assert shared == pytest.approx([2.5046, 2.5442], abs=5e-5)


@pytest.mark.parametrize("order", [2, 4, 8])
@pytest.mark.parametrize(("one", "other"), [(1.0, 5.0), (0.8, 1.2)])
def test_joint_multiplier_by_integration(one, other, order):
    """Two Gaussians on the same sampled batch: E_Q (P/Q)^α over the plane, for P = (1-q)Q + qQ shifted by one in both."""
    q = 0.1
    at = np.linspace(-30, 40, 1401)
    u, v = at[:, None] * one / 2, at[None, :] * other / 2
    ratio = np.exp((2 * u - 1) / (2 * one**2) + (2 * v - 1) / (2 * other**2))
    base = np.exp(-(u**2) / (2 * one**2) - v**2 / (2 * other**2)) / (2 * math.pi * one * other)
    cell = (at[1] - at[0]) ** 2 * one * other / 4
    truth = math.log((base * (1 - q + q * ratio) ** order).sum() * cell) / (order - 1)
    joint = sampled_gaussian(order, noise=joint_multiplier(one, other), rate=q)
    assert joint == pytest.approx(truth, rel=1e-6)
    assert joint > sum(
        sampled_gaussian(order, noise=z, rate=q) for z in (one, other)
    )  # batches drawn apart are cheaper


def test_remaining_multiplier_undoes_the_joint_one():
    assert joint_multiplier(remaining_multiplier(1.5, 4.0), 4.0) == pytest.approx(1.5)
    for total in (4.0, 0.0):
        with pytest.raises(BadInput):
            remaining_multiplier(total, 4.0)
    with pytest.raises(BadInput):
        joint_multiplier(1.0, 0.0)


@pytest.mark.parametrize(("orders", "needed"), [(ORDERS, 3.34), ((8,), 2.99)], ids=["default orders", "one order"])
def test_what_the_filter_costs_against_fixed_noise(orders, needed):
    """The 1500 steps that are ε = 2.50 for fixed noise, with the union over orders and the plain conversion."""
    for eps, fits in ((needed + 0.01, True), (needed - 0.01, False)):
        budget = RDPFilter(eps, 1e-5, orders)
        spent = tuple(1499 * sampled_gaussian(order, noise=1.0, rate=0.01) for order in orders)
        assert RDPFilter(eps, 1e-5, orders, spent).allows(noise=1.0, rate=0.01) == fits
        assert budget.allows(noise=1.0, rate=0.01)


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(1.0, 0.01, 1000), (2.0, 0.1, 100), (0.8, 0.05, 50), (5.0, 1.0, 10)]
)
def test_spent_epsilon_is_an_upper_bound_close_to_opacus(noise, rate, steps):
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    theirs = accountant.get_epsilon(delta=1e-5)
    ours = spent_epsilon(noise=noise, rate=rate, steps=steps, delta=1e-5)
    assert theirs <= ours + 1e-9
    assert (
        ours <= 1.1 * theirs
    )  # it knows fractional orders too, which help most where little noise is spent on few steps


def test_spent_epsilon_of_nothing_and_of_bad_input():
    assert spent_epsilon(noise=1.0, rate=0.1, steps=0, delta=1e-5) == pytest.approx(
        math.log(511 / 512) + (math.log(1e5) - math.log(512)) / 511
    )
    assert spent_epsilon(noise=1.0, rate=0.1, steps=0, delta=0.5) == 0
    with pytest.raises(BadInput, match="delta within"):
        spent_epsilon(noise=1.0, rate=0.1, steps=1, delta=1.0)
    with pytest.raises(BadInput, match="must be positive"):
        spent_epsilon(noise=0.0, rate=0.1, steps=1, delta=1e-5)
