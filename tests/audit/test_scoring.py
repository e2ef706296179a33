"""Scores are in the order of the truth, whatever order the attack found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit.scoring import Scores, score, score_images, score_images_in_order, trivial_baseline
from leakgauge.core import Pixels
from leakgauge.data.embedded import fashion
from tests.made import reconstruction

SPACE = Pixels((3, 12, 12), mean=(0.5,), std=(0.25,))


def images(n: int, seed: int = 0):
    return torch.rand(n, 3, 12, 12, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)))
def test_a_perfect_shuffled_batch(order):
    truth, y = (images(5) * 255).round() / 255, torch.tensor([0, 0, 1, 2, 3])
    x = SPACE.encode(truth)
    found = score(reconstruction(x[list(order)], y[list(order)]), x, y, space=SPACE, pool=images(10, seed=1))
    assert found.mse == (0.0,) * 5
    assert found.psnr == (math.inf,) * 5
    assert found.ssim == pytest.approx((1.0,) * 5, abs=1e-12)
    assert found.labels == (1.0,) * 5
    assert found.reid == (1.0,) * 5
    assert found.layout == pytest.approx((1.0,) * 5)
    assert found.layout_rank is None  # the first of fifteen candidates may be so by chance


def test_the_layout_is_compared_where_there_are_enough_different_images():
    truth, pool = images(1), images(19, seed=1)
    assert score_images(truth, truth, pool=pool).layout_rank == (1.0,)
    assert score_images(1 - truth, truth, pool=pool).layout_rank == (20.0,)
    assert score_images(truth, truth, pool=torch.cat([pool[:18], truth])).layout_rank is None  # copies count once


def scrambled(images: torch.Tensor) -> torch.Tensor:
    """The four quarters of every image, each in the place of the next."""
    half = images.shape[-1] // 2
    top, bottom = images[..., :half, :], images[..., half:, :]
    return torch.cat(
        [torch.cat([bottom[..., :half], top[..., :half]], -1), torch.cat([bottom[..., half:], top[..., half:]], -1)], -2
    )


def test_pieces_are_put_in_order_where_the_model_has_patches():
    images = fashion("test")[0][:40]
    found = score_images(scrambled(images[:2]), images[:2], pool=images[2:], tile=14)
    assert found.pieces == pytest.approx((1.0, 1.0))
    assert min(found.pieces_lead) > 0.05
    assert max(found.ssim) < 0.3
    swapped = score_images(scrambled(images[[2, 0, 1]]), images[:3], pool=images[3:], tile=14)
    assert swapped.pieces == pytest.approx((1.0, 1.0, 1.0))  # paired by their pieces, in the order of the truth
    assert min(swapped.pieces_lead) > 0.05
    few = score_images(scrambled(images[:2]), images[:2], pool=images[2:10], tile=14)
    assert few.pieces == pytest.approx((1.0, 1.0))
    assert few.pieces_lead is None  # a lead over so few says little
    none = score_images(scrambled(images[:2]), images[:2], pool=images[2:])
    assert (none.pieces, none.pieces_lead) == (None, None)


@pytest.mark.parametrize("y", [torch.eye(4), torch.rand(4, 3, generator=torch.Generator().manual_seed(0))])
def test_targets_that_are_no_single_label_are_not_compared(y):
    x = SPACE.encode(images(4))
    for found in (y, y.argmax(1), None):
        scored = score(reconstruction(x, found), x, y, space=SPACE)
        assert scored.labels is None
        assert min(scored.psnr) > 100


def test_scores_are_in_the_order_of_the_truth():
    truth = images(4)
    noise = torch.tensor([0.0, 0.02, 0.05, 0.1]).view(-1, 1, 1, 1) * (images(4, seed=2) - 0.5)
    guess = (truth + noise).clamp(0, 1)
    expected = ((guess - truth).double().numpy() ** 2).mean((1, 2, 3))
    shuffled = score_images(guess[[2, 0, 3, 1]], truth)
    np.testing.assert_allclose(shuffled.mse, expected, rtol=1e-6)
    np.testing.assert_allclose(shuffled.psnr[1:], -10 * np.log10(expected[1:]), rtol=1e-6)
    assert list(shuffled.ssim) == sorted(shuffled.ssim, reverse=True)


def test_labels_follow_their_images():
    truth = images(3)
    found = score_images(truth[[1, 2, 0]], truth, labels=torch.tensor([5, 9, 4]), truth=torch.tensor([4, 5, 6]))
    assert found.labels == (1.0, 1.0, 0.0)


def test_labels_of_noise_are_compared_as_a_multiset():
    """Noise is paired with images by chance, so a label that was read is right wherever the pairing puts it."""
    truth, noise = images(6), images(6, seed=9)
    labels = torch.tensor([0, 1, 1, 2, 3, 4])
    for seed in range(5):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
        found = score_images(noise, truth, labels=labels[order], truth=labels)
        assert found.labels == (1.0,) * 6
    assert score_images(noise, truth, labels=torch.tensor([0, 0, 1, 2, 3, 9]), truth=labels).mean("labels") == 4 / 6
    # image 0 is shown: its own label counts, and no other image can take it
    half = torch.cat([truth[:1], noise[1:]])
    found = score_images(half, truth, labels=torch.tensor([4, 0, 1, 1, 2, 3]), truth=labels)
    assert found.labels == (0.0, 1.0, 1.0, 1.0, 1.0, 0.0)


def test_what_was_not_measured_is_none():
    found = score_images(images(2), images(2, seed=1))
    assert (found.lpips, found.reid, found.labels, found.layout_rank) == (None, None, None, None)
    assert found.summary()["lpips"] is None
    assert set(found.means()) == {"mse", "psnr", "ssim", "layout"}


def test_a_perceptual_distance_is_asked_in_the_order_of_the_truth():
    truth = images(3)

    def lpips(a, b):
        return (a - b).abs().flatten(1).sum(1)

    assert score_images(truth[[2, 0, 1]], truth, lpips=lpips).lpips == (0.0, 0.0, 0.0)
    worse = trivial_baseline(truth, lpips=lpips)
    assert all(value > 0 for value in worse.lpips)


def test_summary():
    found = Scores(mse=(0.1, 0.3), psnr=(10.0, math.inf), ssim=(0.5, 1.0))
    assert found.summary()["mse"] == {"mean": pytest.approx(0.2), "min": 0.1, "max": 0.3, "per_image": [0.1, 0.3]}
    assert found.means()["psnr"] == math.inf


def test_trivial_baseline_is_the_better_of_mean_and_blur():
    from leakgauge.measures import baseline

    truth = torch.cat([images(2), torch.full((1, 3, 12, 12), 0.3)])
    found = trivial_baseline(truth)
    both = [score_images_in_order(f(truth), truth) for f in (baseline.mean_colour, baseline.blur)]
    for metric, best in (("mse", min), ("psnr", max), ("ssim", max)):
        columns = zip(*(getattr(s, metric) for s in both), strict=True)
        assert getattr(found, metric) == tuple(best(pair) for pair in columns)
    assert found.psnr[2] > 60  # a flat picture is its own mean


def test_labels_of_one_mixture_are_compared_as_a_set_with_repeats():
    truths = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    mixed = truths.mean(0, keepdim=True).expand(4, -1, -1, -1)
    truth = torch.tensor([3, 5, 3, 7])
    scores = score_images(mixed, truths, labels=torch.tensor([5, 3, 3, 9]), truth=truth)
    assert scores.labels == (1.0, 1.0, 1.0, 0.0)
    apart = score_images(truths, truths, labels=torch.tensor([5, 3, 3, 7]), truth=truth)
    assert apart.labels == (0.0, 0.0, 1.0, 1.0)
