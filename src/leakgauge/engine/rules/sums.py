"""Sums over the rows of large tensors: dots, squares, absolute values. One pass forward and one backward; no lost digits on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakgauge.channels.rows import as_rows
from leakgauge.engine.fused import chain

PIECE, LONG = 2**10, 2**15
"""How many values a CPU adds sequentially, in a norm and in a product."""


def row_dot(gradient: Tensor, target: Tensor) -> Tensor:
    """⟨g_r, t⟩ or ⟨g_r, t_r⟩ for every row r, shape (R,)."""
    flat = as_rows(gradient)
    if target.dim() == gradient.dim():
        return (flat * as_rows(target)).sum(1)
    if flat.device.type != "cpu" or flat.shape[1] <= LONG:
        return flat @ target.flatten()
    # as in _in_pieces: over two million values a single product would lose four digits
    return torch.stack([g @ t for g, t in zip(flat.split(LONG, 1), target.flatten().split(LONG), strict=True)]).sum(0)


def row_square(values: Tensor) -> Tensor:
    """Σ v² of every row of (R, k), shape (R,)."""
    return _RowSquare.apply(values)


def squares_of_rows(values: Tensor) -> Tensor:
    """The same without a derivative."""
    return _in_pieces(values, lambda piece: torch.linalg.vector_norm(piece, dim=-1).square())


class _RowSquare(torch.autograd.Function):
    """One pass forward and one backward. Autograd would store the squares, and twice the values before scaling them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return squares_of_rows(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (values,) = ctx.saved_tensors
        return values * (2 * grads[0]).unsqueeze(1)


def _in_pieces(values: Tensor, summed: Callable[[Tensor], Tensor]) -> Tensor:
    """A sum over the last dimension of (R, k). On a CPU the norm adds sequentially and loses three of seven digits over a million
    values; sums of pieces lose none and take no longer.
    """
    whole = values.shape[1] // PIECE * PIECE
    if values.device.type != "cpu" or not whole:
        return summed(values)
    return summed(values[:, :whole].unflatten(1, (-1, PIECE))).sum(1) + summed(values[:, whole:])


def row_absolute(values: Tensor) -> Tensor:
    """Σ |v| of every row of (R, k), shape (R,)."""
    return _RowAbsolute.apply(values)


class _RowAbsolute(torch.autograd.Function):
    """Autograd would store the absolute values and multiply the signs by an expanded slope into a third tensor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return _in_pieces(values, lambda piece: torch.linalg.vector_norm(piece, 1, dim=-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (values,) = ctx.saved_tensors
        return _signs(values, grads[0].unsqueeze(1))


@chain
def _signs(values: Tensor, slope: Tensor) -> Tensor:
    return values.sgn().mul_(slope)
