"""Measures of text against plain Python and scipy."""

import math
from collections import Counter
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from leakgauge.errors import BadInput
from leakgauge.measures.text import adjacent_pairs, kendall_tau, pair_sentences, set_precision_recall, token_accuracy

sentences = st.integers(1, 9).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 5), min_size=n, max_size=n) for _ in range(2)])
)


def batch(*rows):
    return torch.tensor(rows)


@settings(deadline=None, max_examples=60)
@given(sentences)
def test_accuracy_and_sets_as_counted_by_hand(two):
    guess, truth = two
    right = sum(g == t for g, t in zip(guess, truth, strict=True))
    assert token_accuracy(batch(guess), batch(truth)).tolist() == pytest.approx([right / len(truth)])
    both = set(guess) & set(truth)
    assert set_precision_recall(batch(guess), batch(truth)) == (
        len(both) / len(set(guess)),
        len(both) / len(set(truth)),
    )


@settings(deadline=None, max_examples=60)
@given(sentences)
def test_adjacent_pairs_as_counted_by_hand(two):
    guess, truth = two
    if len(truth) == 1:
        expected = float(guess == truth)
    else:
        expected = (Counter(pairwise(guess)) & Counter(pairwise(truth))).total() / (len(truth) - 1)
    assert adjacent_pairs(batch(guess), batch(truth)).tolist() == pytest.approx([expected])


@settings(deadline=None, max_examples=40)
@given(st.permutations(range(7)))
def test_tau_is_scipys_on_permutations(guess):
    truth = list(range(7))
    expected = kendalltau([guess.index(token) for token in truth], truth).statistic
    assert kendall_tau(batch(guess), batch(truth)).tolist() == pytest.approx([expected])


def test_tau_leaves_out_tokens_that_repeat_or_are_missing():
    truth = batch([1, 2, 3, 4, 4, 9])
    assert kendall_tau(batch([4, 1, 3, 2, 7, 7]), truth).tolist() == pytest.approx([1 / 3])
    assert math.isnan(kendall_tau(batch([1, 0, 0, 0, 0, 0]), truth).item())


def test_shifted_text_keeps_its_order_but_not_its_places():
    truth, shifted = batch([1, 2, 3, 4, 5]), batch([9, 1, 2, 3, 4])
    assert token_accuracy(shifted, truth).item() == 0
    assert adjacent_pairs(shifted, truth).item() == 0.75
    assert kendall_tau(shifted, truth).item() == 1


def test_a_shuffled_batch_gets_its_order_back():
    truth = torch.arange(12).view(3, 4)
    for order in permutations(range(3)):
        assert pair_sentences(truth[list(order)], truth).tolist() == list(order)


def test_sets_are_of_the_whole_batch():
    truth = batch([1, 1, 2], [3, 3, 3])
    assert set_precision_recall(batch([3, 3, 2], [1, 5, 5]), truth) == (3 / 4, 1.0)


@pytest.mark.parametrize("shapes", [((1, 3), (1, 4)), ((3,), (3,)), ((0, 3), (0, 3))])
def test_refuses_what_are_no_two_batches_of_one_shape(shapes):
    a, b = (torch.zeros(shape, dtype=torch.long) for shape in shapes)
    for measure in (token_accuracy, adjacent_pairs, kendall_tau, pair_sentences):
        with pytest.raises(BadInput, match="one shape"):
            measure(a, b)


def test_sets_need_tokens():
    with pytest.raises(BadInput, match="at least one token"):
        set_precision_recall(torch.zeros(1, 0), batch([1]))
