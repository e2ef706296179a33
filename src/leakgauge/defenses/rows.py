"""Arithmetic on the rows of a signal, where each row is one message."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core import Signal


def row_norms(signal: Signal) -> Tensor:
    """Euclidean length of each row over all tensors together, shape (rows,), float64."""
    squares = [t.flatten(1).double().square().sum(1) for t in signal.values()]
    return torch.stack(squares).sum(0).sqrt() if squares else torch.zeros(1, dtype=torch.float64)


def column(values: Tensor, like: Tensor) -> Tensor:
    """One value per row of ``like``, in its type, ready to be multiplied with it."""
    return values.to(like).view(-1, *[1] * (like.dim() - 1))
