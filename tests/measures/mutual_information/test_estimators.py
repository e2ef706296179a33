"""Estimators on the committed samples of the bmi benchmark (made by tools/make_bmi_fixtures.py), whose truth is known."""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.mutual_information import (
    CCA,
    CLUB,
    DV,
    ESTIMATORS,
    KSG,
    MINE,
    NWJ,
    SMILE,
    CriticFit,
    InfoNCE,
)
from leakgauge.testing import gaussian_pairs

FIXTURES = Path(__file__).parent / "fixtures" / "bmi.npz"
QUICK = CriticFit(batch=32, steps=200, shifts=31)
LOWER = {"dv": DV(QUICK), "mine": MINE(training=QUICK), "nwj": NWJ(QUICK), "infonce": InfoNCE(32, QUICK)}
"""Lower bounds with a short training: a bound holds for any critic."""


@cache
def tasks():
    with np.load(FIXTURES) as stored:
        names = [name.removesuffix(".nats") for name in stored if name.endswith(".nats")]
        return {
            name: (
                *(torch.from_numpy(stored[f"{name}.{s}"].astype(np.float64)) for s in "xy"),
                float(stored[f"{name}.nats"]),
            )
            for name in names
        }


@cache
def quick(name, task):
    a, b, _ = tasks()[task]
    return LOWER[name](a, b)


def test_fixtures_are_small_and_complete():
    assert FIXTURES.stat().st_size <= 200_000
    assert len(tasks()) == 8
    assert tasks()["1v1-normal-0.75"][2] == pytest.approx(-0.5 * math.log(1 - 0.75**2))


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize("task", tasks())
def test_lower_bounds_hold(name, task):
    truth, found = tasks()[task][2], quick(name, task)
    assert found.bound == "lower"
    assert found.nats <= truth + 0.1
    assert found.nats >= -0.1  # light-tailed or tamed: no bound may blow up downwards either
    assert found.nats <= found.ceiling


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["dv", "mine", "nwj", "infonce"])
@pytest.mark.parametrize("task", tasks())
def test_lower_bounds_hold_with_the_default_training(name, task, seed):
    a, b, truth = tasks()[task]
    assert ESTIMATORS[name]()(a, b, seed=seed).nats <= truth + 0.1


@pytest.mark.parametrize("name", LOWER)
@pytest.mark.parametrize("task", ["1v1-normal-0.75", "multinormal-dense-25-25-0.5"])
def test_lower_bounds_find_most_of_what_is_there(name, task):
    assert quick(name, task).nats >= 0.75 * tasks()[task][2]


def test_smile_and_ksg_in_few_dimensions():
    a, b, truth = tasks()["1v1-normal-0.75"]
    assert SMILE(training=QUICK)(a, b).nats == pytest.approx(truth, abs=0.08)
    assert KSG()(a, b).nats == pytest.approx(truth, abs=0.05)
    a, b, truth = tasks()["1v1-additive-0.1"]
    assert KSG()(a, b).nats == pytest.approx(truth, abs=0.1)


def test_ksg_reads_too_little_in_many_dimensions():
    a, b, truth = tasks()["multinormal-dense-25-25-0.5"]
    assert KSG()(a, b).high < truth - 0.2


def test_cca_sees_only_what_is_linear():
    a, b, truth = tasks()["multinormal-sparse-5-5-2-2.0"]
    assert CCA()(a, b).nats == pytest.approx(truth, abs=0.12)
    a, b, truth = tasks()["swissroll_x-normal_cdf-1v1-normal-0.75"]
    assert CCA()(a, b).nats < 0.1 < truth


def test_in_sample_correlations_are_flagged():
    """200 independent pairs of 40 dimensions each: in the sample they look like many nats."""
    rng = torch.Generator().manual_seed(0)
    found = CCA()(torch.randn(200, 40, generator=rng), torch.randn(200, 40, generator=rng))
    assert found.in_sample > 5
    assert abs(found.nats) < 0.1
    assert found.overfitted


def test_an_overfitted_critic_is_flagged():
    """A large critic that is never stopped learns 60 independent pairs by heart; held out it reads nothing."""
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 60, 10, generator=rng)
    greedy = InfoNCE(24, CriticFit(hidden=(128, 64), steps=300, patience=1000, weight_decay=0.0))
    patient = greedy(a, b)
    assert patient.in_sample - patient.nats < 1  # the best step on the pairs kept for stopping is an early one
    keeps_all = CriticFit(hidden=(128, 64), steps=300, every=300, patience=1000, weight_decay=0.0)
    late = InfoNCE(24, keeps_all)(a, a + 0.5 * b)
    assert late.overfitted
    assert late.in_sample > late.nats + 0.3


def test_infonce_cannot_say_more_than_the_logarithm_of_its_candidates():
    a, _ = gaussian_pairs(400, correlation=0.0)
    found = InfoNCE(8, QUICK)(a, a)  # the same side twice: endless information
    assert found.ceiling == pytest.approx(math.log(8))
    assert 1.0 < found.nats <= math.log(8)
    few = InfoNCE(1000, QUICK)(a[:100], a[:100])
    assert few.ceiling == pytest.approx(math.log(40))  # 40 of 100 pairs are held out


def test_club_lies_above_the_truth_of_a_gaussian():
    a, b = gaussian_pairs(1000, correlation=0.75)
    found = CLUB(QUICK)(a, b)
    assert found.bound == "upper"
    assert found.low > -0.5 * math.log(1 - 0.75**2)
    assert found.nats == pytest.approx(0.75**2 / (1 - 0.75**2), abs=0.35)  # the Jeffreys divergence


def test_ksg_of_rounded_values_is_finite():
    a, b = gaussian_pairs(300, correlation=0.9)
    found = KSG()(a.round(), b.round())
    assert 0 < found.nats < -0.5 * math.log(1 - 0.81) + 0.1


def test_ksg_intervals_cover():
    truth = -0.5 * math.log(1 - 0.6**2)
    found = [KSG()(*gaussian_pairs(400, correlation=0.6, seed=s)) for s in range(60)]
    assert sum(e.low <= truth <= e.high for e in found) >= 50


@pytest.mark.parametrize("make", [lambda: KSG(0), lambda: InfoNCE(1), lambda: SMILE(0.0), lambda: MINE(1.0)])
def test_options_are_checked(make):
    with pytest.raises(BadInput):
        make()


@pytest.mark.parametrize("name", ["smile", "club"])
def test_heavy_tails_do_not_blow_up(name):
    a, b, _ = tasks()["student-identity-5-5-2"]
    found = ESTIMATORS[name](training=QUICK)(a, b)
    assert math.isfinite(found.nats)
    assert found.nats > -0.2
