"""What may set the noise: bounded and paid for, or made of released things alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from leakgauge.errors import BadInput
from leakgauge.measures.mutual_information.estimate import Estimate
from leakgauge.measures.rdp import Overspent, RDPFilter
from leakgauge.monitor.adaptive import (
    CanaryScore,
    NoiseSchedule,
    PrivateStatistic,
    ReleasedValue,
    correlations,
    matched_hits,
)


@given(st.floats(0, 1), st.floats(0.1, 3), st.floats(0, 5))
def test_noise_is_never_below_the_floor_nor_above_the_ceiling(value, floor, more):
    schedule = NoiseSchedule(floor=floor, ceiling=floor + more, low=0.3, high=0.8)
    assert floor <= schedule(ReleasedValue(value, "")) <= (floor + more) * (1 + 1e-12)
    assert schedule(ReleasedValue(value, "")) <= schedule(ReleasedValue(min(value + 0.1, 1.0), "")) * (1 + 1e-12)


def test_schedule_by_hand():
    schedule = NoiseSchedule(floor=1.0, ceiling=3.0, low=0.5, high=0.9)
    found = [schedule(None if value is None else ReleasedValue(value, "")) for value in (None, 0.2, 0.5, 0.7, 0.9, 1.0)]
    assert found == pytest.approx([3.0, 1.0, 1.0, 2.0, 3.0, 3.0])


@pytest.mark.parametrize(
    "given_value", [Estimate.__new__(Estimate), 0.7, torch.tensor(0.7)], ids=["mi", "float", "tensor"]
)
def test_anything_but_a_released_number_is_refused_by_type(given_value):
    with pytest.raises(BadInput, match=r"may not control the noise: .* the noise scale itself would leak"):
        NoiseSchedule(floor=1.0, ceiling=2.0)(given_value)


@pytest.mark.parametrize(
    "options",
    [{"floor": 0.0, "ceiling": 1.0}, {"floor": 2.0, "ceiling": 1.0}, {"floor": 1.0, "ceiling": 2.0, "low": 1.0}],
    ids=str,
)
def test_schedules_without_a_floor_or_order_are_refused(options):
    with pytest.raises(BadInput):
        NoiseSchedule(**options)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20), st.floats(allow_nan=True))
def test_one_sample_moves_the_statistic_by_at_most_half_over_the_batch_size(scores, one):
    """The noise is the same in both, so the difference is the sensitivity; clipping to [0, 1] only shrinks it."""
    statistic = PrivateStatistic(noise=0.3)
    values = [
        statistic(torch.tensor(some, dtype=torch.float64), expected=16, rng=torch.Generator().manual_seed(1)).value
        for some in (scores, [*scores, one])
    ]
    assert abs(values[0] - values[1]) <= 0.5 / 16 + 1e-12


def test_the_statistic_is_the_mean_with_the_stated_noise():
    statistic, rng = PrivateStatistic(noise=3.0), torch.Generator().manual_seed(0)
    scores = torch.tensor([1.0] * 60 + [0.0] * 40)
    values = torch.tensor([statistic(scores, expected=100, rng=rng).value for _ in range(2000)])
    assert float(values.mean()) == pytest.approx(0.6, abs=4 * 0.03 / math.sqrt(2000))
    assert float(values.std()) == pytest.approx(0.03, rel=0.07)
    assert statistic.multiplier == 6.0  # noise 3 over a sensitivity of 1/2


def test_noise_comes_from_the_operating_system_unless_seeded():
    assert (
        PrivateStatistic(noise=1.0).generator().initial_seed() != PrivateStatistic(noise=1.0).generator().initial_seed()
    )
    assert PrivateStatistic(noise=1.0, seed=5).generator().initial_seed() == 5


def test_a_query_on_its_own_batch_is_paid_from_the_same_budget():
    budget, statistic = RDPFilter(eps=2.0, delta=1e-5), PrivateStatistic(noise=2.5)
    assert statistic.spend(budget, rate=0.01).spent == budget.spend(noise=5.0, rate=0.01).spent
    with pytest.raises(Overspent):
        PrivateStatistic(noise=0.1).spend(budget, rate=1.0)


def test_a_hit_depends_on_its_own_sample_alone():
    rng = torch.Generator().manual_seed(0)
    samples = {"a": torch.randn(6, 3, 4, generator=rng), "b": torch.randn(6, 5, generator=rng)}
    released = {"a": torch.randn(3, 4, generator=rng), "b": torch.randn(5, generator=rng)}
    together = correlations(released, samples)
    for i in range(6):
        row = torch.cat([samples["a"][i].flatten(), samples["b"][i]])
        flat = torch.cat([released["a"].flatten(), released["b"]])
        assert float(together[i]) == pytest.approx(float(row @ flat / row.norm()), rel=1e-5)
    changed = {name: g.clone() for name, g in samples.items()}
    changed["a"][0] = math.nan
    found = correlations(released, changed)
    assert found[0] == 0.0
    assert torch.equal(found[1:], together[1:])
    hits = matched_hits(released, samples, noise=0.5, threshold=1.0)
    assert torch.equal(hits, (together > 0.5).double())


def gradient_of(model, x, y):
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    return {name: g for (name, _), g in zip(model.named_parameters(), found, strict=True)}


def test_canaries_are_told_without_noise_and_not_under_much(model_of, data):
    x, y = data
    model = model_of()
    score = CanaryScore(inside=(x[:10], y[:10]), outside=(x[10:20], y[10:20]))
    also = [*range(10), 20, 21]  # two samples that are no canaries
    clean = gradient_of(model, x[also], y[also])
    rng = torch.Generator().manual_seed(0)
    assert score(score.read(model, clean)).value > 0.95
    noisy = [
        score(score.read(model, {n: g + 20 * torch.randn(g.shape, generator=rng) for n, g in clean.items()})).value
        for _ in range(10)
    ]
    assert 0.3 < sum(noisy) / len(noisy) < 0.7


def test_reading_canaries_leaves_training_alone(model_of, data):
    x, y = data
    model = model_of(dropout=0.3).train()
    state, before = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    CanaryScore(inside=(x[:4], y[:4]), outside=(x[4:8], y[4:8])).read(model, gradient_of(model.eval(), x[:4], y[:4]))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda: PrivateStatistic(noise=0.0),
        lambda: PrivateStatistic(noise=1.0, every=0),
        lambda: PrivateStatistic(noise=1.0)(torch.zeros(2, 2), expected=2, rng=torch.Generator()),
        lambda: CanaryScore(inside=(torch.zeros(1, 2), torch.zeros(1)), outside=(torch.zeros(2, 2), torch.zeros(2))),
        lambda: CanaryScore(inside=(torch.zeros(2, 2),) * 2, outside=(torch.zeros(2, 2),) * 2, keep=2.0),
    ],
    ids=["no noise", "never", "matrix", "one canary", "keep"],
)
def test_drivers_that_cannot_work_are_refused(make):
    with pytest.raises(BadInput):
        make()
