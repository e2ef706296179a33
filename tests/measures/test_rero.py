"""Reconstruction robustness against closed forms, an independent integration and simulated adversaries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from leakgauge.errors import BadInput
from leakgauge.measures.intervals import clopper_pearson
from leakgauge.measures.rero import GaussianSteps, membership_bound, noise_for, reconstruction_bound


@pytest.mark.parametrize(
    ("ratio", "published"), [(0.25, 0.151), (0.5, 0.217), (1.0, 0.389), (2.0, 0.764), (3.0, 0.957)]
)
def test_published_values_without_sampling(ratio: float, published: float) -> None:
    assert reconstruction_bound(GaussianSteps(noise=1 / ratio), 0.1) == pytest.approx(published, abs=5e-4)
    by_steps = GaussianSteps(noise=4 / ratio, steps=16)
    assert reconstruction_bound(by_steps, 0.1) == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("noise", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("prior", [0.001, 0.1, 0.6])
def test_one_sampled_step_is_a_threshold_on_the_draw(noise: float, rate: float, prior: float) -> None:
    exact = (1 - rate) * prior + rate * ndtr(ndtri(prior) + 1 / noise)
    assert reconstruction_bound(GaussianSteps(noise, rate), prior) == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize(("noise", "rate", "prior"), [(1.0, 0.5, 0.1), (0.7, 0.1, 0.05), (2.0, 0.2, 0.3)])
def test_two_sampled_steps_by_integration_over_the_plane(noise: float, rate: float, prior: float) -> None:
    w = np.linspace(-8 * noise, 8 * noise + 1, 1500)
    plain = np.exp(-(w**2) / (2 * noise**2))
    plain /= plain.sum()
    ratio = 1 - rate + rate * np.exp((2 * w - 1) / (2 * noise**2))
    without, ratios = np.outer(plain, plain).ravel(), np.outer(ratio, ratio).ravel()
    order = np.argsort(-ratios)
    total = np.cumsum(without[order])
    expected = float((without * ratios)[order][total <= prior].sum())
    assert reconstruction_bound(GaussianSteps(noise, rate, 2), prior) == pytest.approx(expected, abs=2e-3)


def test_sampling_that_is_nearly_certain_is_as_without() -> None:
    certain = reconstruction_bound(GaussianSteps(1.0, 1.0, 4), 0.1)
    assert reconstruction_bound(GaussianSteps(1.0, 1 - 1e-9, 4), 0.1) == pytest.approx(certain, abs=1e-4)


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "prior"),
    [(1.0, 0.01, 100, 0.1), (0.6, 0.1, 10, 0.1), (2.0, 0.2, 200, 0.1), (1.0, 1.0, 4, 0.05)],
)
def test_the_best_adversary_reaches_the_bound_and_does_not_pass_it(
    noise: float, rate: float, steps: int, prior: float
) -> None:
    """The likelihood-ratio test simulated 200,000 times: its exact 99.9 % interval holds the bound (to the grid's 0.002)."""
    rng, count = np.random.default_rng(0), 200_000

    def loss(w: np.ndarray) -> np.ndarray:
        if rate == 1:
            return (2 * w - 1) / (2 * noise**2)
        return np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * w - 1) / (2 * noise**2))

    without, present = np.zeros(count), np.zeros(count)
    for _ in range(steps):
        without += loss(rng.normal(0, noise, count))
        present += loss(rng.normal(0, noise, count) + (rng.random(count) < rate))
    hits = int((present > np.quantile(without, 1 - prior)).sum())
    low, high = clopper_pearson(hits, count, level=0.999)
    assert low - 0.002 <= reconstruction_bound(GaussianSteps(noise, rate, steps), prior) <= high + 0.002


def test_more_noise_less_sampling_and_fewer_steps_protect() -> None:
    base = reconstruction_bound(GaussianSteps(1.0, 0.1, 50), 0.1)
    assert reconstruction_bound(GaussianSteps(2.0, 0.1, 50), 0.1) < base
    assert reconstruction_bound(GaussianSteps(1.0, 0.05, 50), 0.1) < base
    assert reconstruction_bound(GaussianSteps(1.0, 0.1, 25), 0.1) < base
    assert base > 0.1
    assert membership_bound(GaussianSteps(1.0, 0.1, 50), 0.1) == base


def test_ends_of_the_range() -> None:
    steps = GaussianSteps(1.0, 0.1, 10)
    assert reconstruction_bound(steps, 0.0) == 0.0
    assert reconstruction_bound(steps, 1.0) == 1.0
    assert reconstruction_bound(GaussianSteps(0.05), 0.1) == pytest.approx(1.0)
    assert reconstruction_bound(GaussianSteps(0.3, 0.5, 100), 0.01) == pytest.approx(1.0, abs=1e-6)


def test_thousands_of_steps() -> None:
    assert 0.1 < reconstruction_bound(GaussianSteps(1.0, 0.001, 10_000), 0.1) < 0.14


def test_noise_for_a_wished_bound() -> None:
    found = noise_for(0.2, 0.1, rate=0.01, steps=1000)
    assert reconstruction_bound(GaussianSteps(found, 0.01, 1000), 0.1) <= 0.2
    assert reconstruction_bound(GaussianSteps(0.99 * found, 0.01, 1000), 0.1) > 0.2
    by_hand = math.sqrt(9) / (ndtri(0.3) - ndtri(0.1))
    assert noise_for(0.3, 0.1, steps=9) == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.parametrize("wrong", [{"noise": 0.0}, {"noise": -1.0}, {"noise": math.inf}, {"noise": math.nan}])
def test_without_noise_no_bound_exists(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match="without noise no bound exists"):
        GaussianSteps(**wrong)


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": 1.5}, {"steps": 0}])
def test_impossible_training_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        GaussianSteps(noise=1.0, **wrong)  # pyright: ignore[reportArgumentType]


def test_a_bound_below_the_prior_is_refused() -> None:
    with pytest.raises(BadInput, match="between the prior and 1"):
        noise_for(0.1, 0.2)
