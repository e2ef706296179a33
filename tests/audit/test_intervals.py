"""Intervals against scipy's own, and their promise: they hold the mean as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from leakgauge.audit.scoring import POSSIBLE, interval


def test_against_scipy():
    values = np.random.default_rng(0).normal(0.4, 0.1, 8)
    found = interval(values.tolist(), level=0.9)
    low, high = stats.t.interval(0.9, 7, loc=values.mean(), scale=stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert (found.mean, found.n, found.level) == (pytest.approx(values.mean()), 8, 0.9)


def test_it_holds_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    found = [interval(rng.normal(0.3, 0.2, 5).tolist()) for _ in range(800)]
    held = np.mean([one.low <= 0.3 <= one.high for one in found])
    assert 0.92 < held < 0.98


def test_too_few_values_have_no_interval():
    assert interval([]) is None
    assert interval([0.5]) is None
    assert interval([0.5, math.inf]) is None
    assert interval([0.5, math.inf, 0.7]).n == 2


def test_no_mean_lies_outside_of_what_is_possible():
    wide, cut = interval([0.1, 0.4]), interval([0.1, 0.4], within=POSSIBLE["ssim"])
    assert (wide.low, wide.high) < (-1, 1) < (wide.high, wide.high)
    assert (cut.low, cut.high, cut.mean) == (-1, 1, wide.mean)
    assert interval([9.0, 11.0], within=POSSIBLE["psnr"]).low == 0
