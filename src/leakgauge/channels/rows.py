"""Arithmetic on the rows of a signal, where each row is one message."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.core import Signal


def as_rows(values: Tensor) -> Tensor:
    """(R, *shape) flattened to (R, k); a row may be a single number."""
    return values.reshape(len(values), -1)


def row_norms(signal: Signal) -> Tensor:
    """Euclidean length of each row over all tensors together, shape (rows,), float64."""
    return _squares(signal).sqrt()


def column(values: Tensor, like: Tensor) -> Tensor:
    """One value per row of ``like``, in its type, shaped to multiply with it."""
    return values.to(like).view(-1, *[1] * (like.dim() - 1))


def clip_rows(signal: Signal, norm: float) -> dict[str, Tensor]:
    """g · min(1, norm / ‖g‖) for each row g, over all tensors of the row. Differentiable, even where g = 0.

    Half precision is scaled in single precision: a rounded factor would leave rows longer than ``norm``.

    Ref: Abadi et al. 2016, Algorithm 1 — clip gradient
    """
    if math.isinf(norm):
        return dict(signal)
    squares = _squares(signal)
    lengths = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()  # the root has no slope at zero
    factors = (norm / lengths).clamp(max=1.0)
    return {name: _scale(t, factors) for name, t in signal.items()}


def _scale(rows: Tensor, factors: Tensor) -> Tensor:
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return (wide * column(factors, wide)).to(rows.dtype)


def _squares(signal: Signal) -> Tensor:
    squares = [as_rows(t).double().square().sum(1) for t in signal.values()]
    return torch.stack(squares).sum(0) if squares else torch.zeros(1, dtype=torch.float64)
