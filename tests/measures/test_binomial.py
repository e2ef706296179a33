import pytest
from scipy.stats import binom, binomtest

from leakgauge.errors import BadInput
from leakgauge.measures.intervals import clopper_pearson


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20), (3, 1000)])
def test_equals_scipys_exact_interval(hits, trials):
    theirs = binomtest(hits, trials).proportion_ci(0.9, method="exact")
    assert clopper_pearson(hits, trials, level=0.9) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_covers_at_least_as_often_as_promised(rate):
    inside = [low <= rate <= high for low, high in (clopper_pearson(k, 30) for k in range(31))]
    assert sum(binom.pmf(k, 30, rate) for k in range(31) if inside[k]) >= 0.95


def test_without_trials_everything_is_possible():
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "trials", "level"), [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0)])
def test_refuses_what_is_no_rate(hits, trials, level):
    with pytest.raises(BadInput):
        clopper_pearson(hits, trials, level=level)
