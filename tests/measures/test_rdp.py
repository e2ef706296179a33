import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.errors import BadInput
from leakgauge.measures.rdp import ORDERS, Overspent, RDPFilter, sampled_gaussian


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
