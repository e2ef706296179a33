"""Cells of rows, counted by hand."""

from __future__ import annotations

import itertools

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.table import nearest_rows, pair_rows, right_cells, typical_row, vote_perplexity

SLACK = torch.tensor([1.0, 0.0, 0.5])


def test_a_number_may_be_off_by_its_tolerance_and_a_category_not_at_all():
    truth = torch.tensor([[10.0, 1.0, 3.0]])
    assert right_cells(torch.tensor([[11.0, 1.0, 3.6]]), truth, SLACK).tolist() == [[True, True, False]]
    assert right_cells(torch.tensor([[11.1, 0.0, 2.5]]), truth, SLACK).tolist() == [[False, False, True]]


def test_pairs_are_the_best_of_all_orders():
    rng = torch.Generator().manual_seed(0)
    guesses, truths = (torch.randint(3, (4, 3), generator=rng).double() for _ in range(2))
    chosen = right_cells(guesses[pair_rows(guesses, truths, SLACK)], truths, SLACK).sum()
    best = max(right_cells(guesses[list(order)], truths, SLACK).sum() for order in itertools.permutations(range(4)))
    assert chosen == best
    with pytest.raises(BadInput, match="one shape"):
        pair_rows(guesses[:3], truths, SLACK)


def test_of_equally_right_orders_the_nearer_numbers_win():
    truths = torch.tensor([[0.0, 0.0, 0.0], [100.0, 0.0, 0.0]])
    guesses = torch.tensor([[90.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
    assert pair_rows(guesses, truths, SLACK).tolist() == [1, 0]


def test_guesses_from_public_rows():
    public = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 1.0], [9.0, 0.0, 1.0]])
    assert typical_row(public, torch.tensor([False, True, True])).tolist() == [3.0, 2.0, 1.0]
    assert nearest_rows(public, torch.tensor([[8.5, 0.0, 0.0]]), SLACK).tolist() == [[9.0, 0.0, 1.0]]


def test_perplexity_counts_equally_likely_values():
    shares = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(vote_perplexity(shares), torch.tensor([1.0, 2.0, 3.0]))
