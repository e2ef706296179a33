import math

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.membership import auc, auc_interval, true_positive_rate


@pytest.mark.parametrize("seed", range(3))
def test_auc_is_the_share_of_ordered_pairs(seed):
    rng = torch.Generator().manual_seed(seed)
    members, others = torch.randint(6, (9,), generator=rng).float(), torch.randint(5, (14,), generator=rng).float()
    pairs = (members[:, None] > others).double() + 0.5 * (members[:, None] == others).double()
    assert auc(members, others).value == pytest.approx(float(pairs.mean()), abs=1e-12)


def test_a_perfect_ranking_is_not_certain():
    rate = auc(torch.arange(10.0) + 100, torch.arange(40.0))
    assert rate.value == rate.high == 1
    assert rate.low == pytest.approx(0.025 ** (1 / 10), abs=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.03, 0.5, 0.8, 0.99])
def test_interval_ends_where_the_bound_says(value):
    low, high = auc_interval(value, 20, 50)
    assert low <= value <= high
    for end in (low, high):
        if 0 < end < 1 and end != value:
            entropy = value * math.log(value / end) if value else 0.0
            entropy += (1 - value) * math.log((1 - value) / (1 - end)) if value < 1 else 0.0
            assert entropy == pytest.approx(math.log(2 / 0.05) / 20, rel=1e-6)


def test_interval_covers_the_true_area():
    """Shifted normals of 15 and 15: P(member > other) = Φ(1/√2) = 0.760; at most 5 % of 400 intervals may miss it."""
    rng = torch.Generator().manual_seed(0)
    truth = 0.5 * (1 + math.erf(0.5))
    draws = torch.randn(400, 30, generator=rng)
    rates = [auc(d[:15] + 1, d[15:]) for d in draws]
    assert sum(not r.low <= truth <= r.high for r in rates) <= 20


def test_true_positive_rate_allows_one_false_positive_in_a_hundred():
    others = torch.arange(200.0)
    members = torch.tensor([250.0, 197.5, 196.5, 3.0])  # two of 200 may lie above the threshold, which is 197
    rate = true_positive_rate(members, others)
    assert rate.value == 0.5
    assert rate.low < 0.5 < rate.high


def test_few_others_mean_none_above():
    assert true_positive_rate(torch.tensor([5.0, 9.0]), torch.tensor([1.0, 6.0])).value == 0.5


@pytest.mark.parametrize(
    ("members", "others"),
    [(torch.zeros(0), torch.zeros(3)), (torch.zeros(2, 2), torch.zeros(3)), (torch.tensor([math.nan]), torch.zeros(3))],
    ids=["empty", "matrix", "nan"],
)
def test_refuses_what_is_no_ranking(members, others):
    with pytest.raises(BadInput):
        auc(members, others)
