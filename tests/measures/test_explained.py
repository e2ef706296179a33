"""FVU and its baselines, the paper's units, the most exposed samples, and bootstrap intervals."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.baseline import (
    class_mean_images,
    mean_image,
    most_exposed,
    mse_per_pixel,
    psnr_of_batches,
)
from leakgauge.measures.image import mse, psnr
from leakgauge.measures.intervals import mean_interval, ratio_interval

IMAGES = torch.rand(40, 3, 5, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 4


def test_class_means():
    means = class_mean_images(IMAGES, LABELS, of=torch.tensor([2, 0, 2]))
    torch.testing.assert_close(means[0], IMAGES[LABELS == 2].double().mean(0))
    torch.testing.assert_close(means[1], IMAGES[LABELS == 0].double().mean(0))
    own = class_mean_images(IMAGES, LABELS, of=LABELS)
    assert mse(own, IMAGES).mean() < mse(mean_image(IMAGES).expand_as(IMAGES), IMAGES).mean()
    with pytest.raises(BadInput, match="class 9 has no image"):
        class_mean_images(IMAGES, LABELS, of=torch.tensor([9]))


def test_units_of_the_paper():
    other = IMAGES.flip(0)
    torch.testing.assert_close(mse_per_pixel(IMAGES, other), 3 * mse(IMAGES, other))
    by_batch = [-10 * math.log10(float(mse(IMAGES[r], other[r]).mean())) for r in (slice(0, 25), slice(25, 40))]
    assert psnr_of_batches(IMAGES, other, batch=25) == pytest.approx(sum(by_batch) / 2)
    assert psnr_of_batches(IMAGES, other, batch=1) == pytest.approx(float(psnr(IMAGES, other).mean()))


def test_most_exposed():
    errors = torch.tensor([5.0, 1.0, 3.0, 2.0])
    assert most_exposed(errors, share=0.5) == 1.5
    assert most_exposed(errors) == 1.0
    with pytest.raises(BadInput, match="share"):
        most_exposed(errors, share=0.0)


def test_interval_of_a_mean_is_the_normal_one():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0))
    found = mean_interval(values)
    half = 1.96 * float(values.std()) / 20
    assert found.value == pytest.approx(float(values.mean()))
    assert found.low == pytest.approx(found.value - half, abs=0.15 * half)
    assert found.high == pytest.approx(found.value + half, abs=0.15 * half)
    assert mean_interval(values, seed=1) != found == mean_interval(values)


def test_interval_covers_as_often_as_it_says():
    rng = torch.Generator().manual_seed(3)
    inside = 0
    for k in range(200):
        below = torch.rand(60, generator=rng) + 0.5
        found = ratio_interval(
            2 * below + 0.3 * torch.randn(60, generator=rng), below, resamples=300, level=0.9, seed=k
        )
        inside += found.low <= 2 <= found.high
    assert 0.83 <= inside / 200 <= 0.96


def test_the_interval_of_a_constant_ratio_is_a_point():
    below = torch.rand(60, generator=torch.Generator().manual_seed(0)) + 0.5
    found = ratio_interval(0.25 * below, below)
    assert found.low == pytest.approx(found.high) == pytest.approx(0.25)


def test_intervals_refuse_bad_input():
    with pytest.raises(BadInput, match="two equally long vectors"):
        ratio_interval(torch.ones(3), torch.ones(2))
    with pytest.raises(BadInput, match=r"level in \(0, 1\)"):
        mean_interval(torch.ones(3), level=1.0)
