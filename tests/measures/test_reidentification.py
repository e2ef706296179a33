"""Ranks of the true image among candidates."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit.scoring import score_images
from leakgauge.core import Pixels
from leakgauge.errors import BadInput
from leakgauge.measures.reidentification import merge_candidates, normalised_correlation, rank


def images(n, seed=0, shape=(3, 8, 8)):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 99))
def test_the_truth_itself_ranks_first_and_its_negative_last(n, m, seed):
    truths, pool = images(n, seed), images(m, seed + 100)
    assert rank(truths, truths, pool).tolist() == [1] * n
    assert rank(1 - truths, truths, pool).tolist() == [n + m] * n


def test_brightness_and_contrast_do_not_matter():
    truths, pool = images(4), images(50, 1)
    assert rank(0.2 * truths + 0.7, truths, pool).tolist() == [1] * 4


def test_a_rank_counts_the_better_candidates():
    truth, other = images(1), images(1, 1)
    pool = torch.cat([0.9 * truth + 0.1 * other, 0.6 * truth + 0.4 * other, other])
    assert rank(other, truth, pool).tolist() == [4]
    assert rank(0.75 * truth + 0.25 * other, truth, pool).tolist() == [3]
    assert rank(truth, truth, pool).tolist() == [1]


@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_a_flat_reconstruction_ranks_last(level):
    truths, pool = images(2), images(9, 1)
    assert rank(torch.full_like(truths, level), truths, pool).tolist() == [11, 11]


def test_a_rival_that_differs_in_brightness_only_is_a_tie_and_counts():
    truth = images(1)
    assert rank(truth, truth, 0.5 * truth).tolist() == [2]


def test_a_pool_that_repeats_the_truths_changes_nothing():
    truths, pool, guesses = images(3), images(20, 1), images(3, 2)
    expected = rank(guesses, truths, pool)
    assert torch.equal(rank(guesses, truths, torch.cat([pool, truths, pool])), expected)


def test_copies_that_were_normalised_and_brought_back_are_no_rivals():
    """Mean and standard deviation cost the last digits; the truth was taken for its own rival, so nothing could rank first."""
    space = Pixels((3, 8, 8), mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    pool = (images(20, 1) * 255).round() / 255
    truths = space.decode(space.encode(pool[:3]))
    assert not torch.equal(truths, pool[:3])
    assert rank(truths, truths, pool).tolist() == [1, 1, 1]
    assert len(merge_candidates(truths, pool)[1]) == 20
    almost = truths.clone()
    almost[:, 0, 0, 0] = 1 - almost[:, 0, 0, 0]  # one pixel apart is another image
    assert len(merge_candidates(almost, pool)[1]) == 23


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_a_model_of_few_digits_rounded_is_no_rival_of_its_original(dtype):
    pool = images(20, 7, shape=(3, 32, 32))
    space = Pixels((3, 32, 32), mean=(0.48, 0.46, 0.41), std=(0.2, 0.2, 0.2))
    truths = space.decode(space.encode(pool[:3]).to(dtype))
    assert rank(pool[:3], truths, pool).tolist() == [1, 1, 1]
    assert score_images(pool[:3].to(dtype), truths, pool=pool).layout_rank == (1.0, 1.0, 1.0)


def test_the_same_image_twice_in_a_batch_is_no_rival_of_itself():
    truths = images(1).expand(2, -1, -1, -1)
    assert rank(truths, truths, images(5, 1)).tolist() == [1, 1]


def test_unrelated_guesses_rank_in_the_middle():
    ranks = rank(images(50, 1), images(50, 2), images(150, 3)).double()
    assert 75 < ranks.mean() < 125


def test_correlation_agrees_with_corrcoef():
    a, b = images(3).double(), images(4, 1).double()
    expected = torch.corrcoef(torch.cat([a, b]).flatten(1))[:3, 3:]
    torch.testing.assert_close(normalised_correlation(a, b), expected)


def test_refuses_other_shapes():
    with pytest.raises(BadInput, match="same shape"):
        rank(images(2), images(3), images(4))
    with pytest.raises(BadInput, match="same shape"):
        rank(images(2), images(2), images(4, shape=(1, 8, 8)))
