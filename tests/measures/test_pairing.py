"""Pairing gives a shuffled batch its order back."""

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.errors import BadInput
from leakgauge.measures.image import mse, pair, psnr, ssim


def images(n, seed=0, side=12):
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8).flatmap(lambda n: st.permutations(range(n))), st.integers(0, 99))
def test_a_perfect_shuffled_batch_scores_perfectly(order, seed):
    truths = images(len(order), seed)
    shuffled = truths[order]
    found = pair(shuffled, truths)
    assert found.dtype == torch.long
    assert found.tolist() == list(order)
    paired = truths[found]
    assert mse(shuffled, paired).tolist() == [0.0] * len(order)
    assert psnr(shuffled, paired).tolist() == [math.inf] * len(order)
    assert ssim(shuffled, paired).tolist() == pytest.approx([1.0] * len(order), abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 5), st.integers(0, 99))
def test_no_other_matching_has_less_error(n, seed):
    guesses, truths = images(n, seed, 4), images(n, seed + 100, 4)
    found = pair(guesses, truths)
    assert sorted(found.tolist()) == list(range(n))
    best = min(mse(guesses, truths[list(p)]).sum().item() for p in permutations(range(n)))
    assert mse(guesses, truths[found]).sum().item() == pytest.approx(best)


def test_a_greedy_match_would_be_wrong():
    levels = torch.tensor([0.5, 0.7]), torch.tensor([0.6, 0.1])
    guesses, truths = (v.view(-1, 1, 1, 1).expand(-1, 1, 4, 4) for v in levels)
    assert pair(guesses, truths).tolist() == [1, 0]


def test_duplicates_still_give_a_permutation():
    truths = images(1).expand(4, -1, -1, -1)
    assert sorted(pair(truths, truths).tolist()) == [0, 1, 2, 3]


def test_refuses_unequal_counts():
    with pytest.raises(BadInput, match="2 reconstructions and 3 truths"):
        pair(images(2), images(3))
