"""Measures of text against plain Python and scipy."""

import itertools
import math
from collections import Counter
from itertools import pairwise, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from leakgauge.errors import BadInput
from leakgauge.measures import text
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


class TestRouge:
    def test_by_hand(self):
        guess, truth = torch.tensor([[1, 2, 3, 9], [5, 5, 5, 1]]), torch.tensor([[1, 2, 3, 4], [5, 1, 5, 2]])
        assert text.rouge_n(guess, truth, 1).tolist() == pytest.approx([3 / 4, 3 / 4])
        assert text.rouge_n(guess, truth, 2).tolist() == pytest.approx([2 / 3, 1 / 3])
        assert text.rouge_l(guess, truth).tolist() == pytest.approx([3 / 4, 1 / 2])
        assert text.exact_sentences(guess, truth).tolist() == [0.0, 0.0]
        assert text.exact_sentences(truth, truth).tolist() == [1.0, 1.0]

    def test_padding_is_left_out(self):
        guess, truth = torch.tensor([[1, 2, 0, 0]]), torch.tensor([[1, 2, 3, 0]])
        assert text.rouge_n(guess, truth, 1, padding=0).item() == pytest.approx(4 / 5)
        assert text.rouge_n(guess, truth, 1).item() == pytest.approx(3 / 4)
        assert text.rouge_l(guess, truth, padding=0).item() == pytest.approx(4 / 5)

    def test_the_longest_common_subsequence_against_all_subsequences(self):
        rng = torch.Generator().manual_seed(0)
        guesses, truths = (torch.randint(3, (20, 6), generator=rng) for _ in range(2))
        for g, t, score in zip(guesses.tolist(), truths.tolist(), text.rouge_l(guesses, truths).tolist(), strict=True):
            subsequences = [{c for k in range(7) for c in itertools.combinations(s, k)} for s in (g, t)]
            assert score == pytest.approx(max(map(len, subsequences[0] & subsequences[1])) / 6)

    def test_short_sentences_without_a_run(self):
        one = torch.tensor([[4]])
        assert text.rouge_n(one, one, 2).tolist() == [1.0]
        with pytest.raises(BadInput, match="at least 1 token"):
            text.rouge_n(one, one, 0)


def test_the_most_frequent_tokens_are_dealt_out():
    public = torch.tensor([[7, 7, 7, 3, 3, 9]])
    assert text.most_frequent(public, 2, 2).tolist() == [[7, 9], [3, 7]]
