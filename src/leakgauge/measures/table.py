"""How much of a row was found: cell by cell, with a tolerance for numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.errors import BadInput

ROUNDING = 1e-6
"""Share of a number by which it may be off besides the tolerance: values pass through 32 bits."""


def right_cells(guesses: Tensor, truths: Tensor, slack: Tensor) -> Tensor:
    """Whether each cell is right: |guess − truth| ≤ slack of its column. Shapes (…, columns) that broadcast.

    >>> right_cells(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.5, 2.0]]), torch.tensor([0.5, 0.0])).tolist()
    [[True, False]]
    """
    truths = truths.double()
    return (guesses.double() - truths).abs() <= slack + ROUNDING * truths.abs()


def pair_rows(guesses: Tensor, truths: Tensor, slack: Tensor) -> Tensor:
    """Index of the guess matched to each truth: the one-to-one matching with the most right cells in total. Ties go to the nearest
    numbers, measured in tolerances.

    >>> truths = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> pair_rows(truths[[1, 0]], truths, torch.zeros(2)).tolist()
    [1, 0]
    """
    if guesses.shape != truths.shape or guesses.dim() != 2 or guesses.numel() == 0:
        raise BadInput(
            f"rows must be two batches of one shape (N, columns), got {tuple(guesses.shape)} and {tuple(truths.shape)}"
        )
    right = right_cells(guesses[None], truths[:, None], slack).double().sum(2)
    off = (guesses.double()[None] - truths.double()[:, None]).abs() / slack.clamp_min(1e-12)
    ties = (off / (1 + off)).mean(2)
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    _, columns = linear_sum_assignment((1e-3 * ties - right).cpu().numpy())
    return torch.as_tensor(columns, dtype=torch.long)


def typical_row(public: Tensor, categories: Tensor) -> Tensor:
    """A guess without any update, (columns,): the most frequent value of each column that ``categories`` (columns,) marks, the median of
    the others.

    >>> typical_row(torch.tensor([[1.0, 0.0], [2.0, 1.0], [9.0, 1.0]]), torch.tensor([False, True])).tolist()
    [2.0, 1.0]
    """
    return torch.where(categories, public.mode(0).values, public.median(0).values)


def nearest_rows(public: Tensor, truths: Tensor, slack: Tensor) -> Tensor:
    """For each truth the row of ``public`` with the most right cells: what the best of all guesses from public rows would find."""
    chosen = [int(right_cells(public, one, slack).double().sum(1).argmax()) for one in truths]
    return public[chosen]


def vote_perplexity(shares: Tensor) -> Tensor:
    """exp(H) of shares (…, K) that sum to 1: the number of equally likely values that are as uncertain. 1 is certain."""
    return torch.exp(-(shares * shares.clamp_min(1e-30).log()).sum(-1))
