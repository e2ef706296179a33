"""The likeness of images whose tiles may stand anywhere: every order by brute force, and how often chance leads."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.data.embedded import fashion, photographs
from leakgauge.errors import BadInput
from leakgauge.measures.layout import lead, pair_pieces, pieces


def in_order(image: torch.Tensor, side: int, order) -> torch.Tensor:
    """One image (C, H, W) with its tiles in another order."""
    _, height, width = image.shape
    tiles = [image[:, i : i + side, j : j + side] for i in range(0, height, side) for j in range(0, width, side)]
    across = width // side
    rows = [torch.cat([tiles[k] for k in order[r : r + across]], -1) for r in range(0, len(tiles), across)]
    return torch.cat(rows, -2)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = ((x - x.mean((-2, -1), keepdim=True)).flatten().double() for x in (a, b))
    return float(a @ b / (a.norm() * b.norm()))


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(16)), st.integers(0, 1000), st.floats(0.1, 0.9), st.floats(0.0, 0.1))
def test_every_order_is_found_whatever_contrast_and_brightness(order, seed, contrast, brightness):
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(seed))
    scrambled = contrast * in_order(image, 4, order) + brightness
    assert float(pieces(scrambled[None], image[None], side=4)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_the_best_of_all_orders(channels):
    rng = torch.Generator().manual_seed(0)
    a, b = torch.rand(5, channels, 8, 8, generator=rng), torch.rand(5, channels, 8, 8, generator=rng)
    best = [max(correlation(in_order(x, 4, p), y) for p in permutations(range(4))) for x, y in zip(a, b, strict=True)]
    assert pieces(a, b, side=4).tolist() == pytest.approx(best, abs=1e-6)


def test_with_a_single_tile_it_is_the_correlation():
    rng = torch.Generator().manual_seed(0)
    a, b = torch.rand(3, 3, 8, 8, generator=rng), torch.rand(3, 3, 8, 8, generator=rng)
    assert pieces(a, b, side=8).tolist() == pytest.approx([correlation(x, y) for x, y in zip(a, b, strict=True)])


def test_a_flat_image_shows_nothing():
    image = photographs(32)[:1]
    grey = torch.full_like(image, 0.5)
    assert float(pieces(grey, image, side=8)) == 0.0
    assert float(lead(grey, image, photographs(32)[1:], side=8)) == pytest.approx(0.0, abs=1e-9)


def test_the_lead_is_over_the_best_of_all_others():
    """Against every candidate by itself: the order in which they are tried leaves none out."""
    images = photographs(32)
    rng = torch.Generator().manual_seed(0)
    noisy = (images + 0.5 * torch.randn(images.shape, generator=rng)).clamp(0, 1)
    found = lead(noisy, images, images, side=4)
    for i, guess in enumerate(noisy):
        each = pieces(guess.expand_as(images), images, side=4)
        others = torch.cat([each[:i], each[i + 1 :]])
        assert float(found[i]) == pytest.approx(float(each[i] - others.max()), abs=1e-9)


def test_scrambled_images_find_their_own():
    images, order = photographs(32), [3, 1, 2, 0]
    quarters = torch.stack([in_order(image, 16, order) for image in images])
    shuffled = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    found = pair_pieces(quarters[shuffled], images, side=16)
    assert shuffled[found].tolist() == list(range(8))


def test_copies_of_the_truth_are_no_rivals():
    images = photographs(32)
    truth, pool = images[:1], torch.cat([images, images[:1] + 1e-4])
    assert float(lead(truth, truth, pool.clamp(0, 1), side=8)) > 0.05


def test_what_tells_nothing_leads_as_often_as_chance_has_it():
    """Of twenty candidates each fits best once in twenty; a lead of 0.05, which the verdict asks for, is rarer."""
    images = fashion("test")[0][:320]
    guesses, truths = images[:300], images[300:320]
    which = torch.randint(0, 20, (300,), generator=torch.Generator().manual_seed(0))  # images come class by class
    leads = torch.cat([lead(guesses[i : i + 1], truths[k][None], truths, side=7) for i, k in enumerate(which)])
    ahead = int((leads > 0).sum())
    assert 4 <= ahead <= 30  # fifteen expected, four standard deviations of a binomial below and above
    assert int((leads >= 0.05).sum()) < ahead


@pytest.mark.parametrize("side", [0, 3, 64])
def test_tiles_must_fill_the_image(side):
    image = photographs(32)[:1]
    with pytest.raises(BadInput, match=f"tiles of {side} pixels do not divide images of 32×32"):
        pieces(image, image, side=side)


def test_a_lead_needs_another_image():
    image = photographs(32)[:1]
    with pytest.raises(BadInput, match="at least one other image"):
        lead(image, image, image, side=8)
