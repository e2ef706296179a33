"""What a layer rule gives: how one use of a weight contributes to the gradient of each restart.

a (R, n, inputs) is what entered the layer, δ (R, n, outputs) the derivative of the loss with respect to what left it, with
n = samples · positions of one restart. The gradient of restart r is δ_rᵀ a_r, and two numbers follow without forming it:

    ⟨g_r, g*⟩ = Σ (a_r g*ᵀ) ∘ δ_r            ‖g_r‖² = Σ (a_r a_rᵀ) ∘ (δ_r δ_rᵀ)        (Gram form)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge

from leakgauge.channels.rows import in_rows


@dataclass(frozen=True, eq=False)
class Use(ABC):
    """One use of a named ``weight`` and/or ``bias`` in a layer whose output left the given edge of the graph."""

    rows: int
    weight: str | None
    bias: str | None
    edge: GradientEdge

    @abstractmethod
    def weight_gradient(self, delta: Tensor) -> Tensor:
        """Gradient of the weight for every restart, (R, *shape)."""

    @abstractmethod
    def bias_gradient(self, delta: Tensor) -> Tensor:
        """Gradient of the bias for every restart, (R, *shape)."""

    def prefers_gram(self) -> bool:
        """Whether dot and norm are cheaper without the gradient itself."""
        return False

    def numbers(self, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """⟨g_r, g*_r⟩ and ‖g_r‖², each (R,); ``target`` is one for all restarts, or has R rows."""
        gradient = self.weight_gradient(delta)
        return row_dot(gradient, target), row_square(in_rows(gradient))


class Recorder(Protocol):
    """What a rule asks of the tape that runs it."""

    rows: int

    def is_data(self, value: Any) -> bool: ...
    def is_parameter(self, value: Any) -> bool: ...
    def name_of(self, value: Any) -> str | None: ...
    def mark_data(self, value: Tensor) -> Tensor: ...
    def tap(self, output: Tensor, make: Callable[[GradientEdge], Use]) -> Tensor: ...
    def added(self, output: Tensor, bias: Tensor | None, *, dim: int) -> Tensor: ...


PIECE, LONG = 2**10, 2**15
"""How many values a CPU adds up one after another, in a norm and in a product."""


def row_dot(gradient: Tensor, target: Tensor) -> Tensor:
    """⟨g_r, t⟩ or ⟨g_r, t_r⟩ for every row r, shape (R,)."""
    flat = in_rows(gradient)
    if target.dim() == gradient.dim():
        return (flat * in_rows(target)).sum(1)
    if flat.device.type != "cpu" or flat.shape[1] <= LONG:
        return flat @ target.flatten()
    # as in _in_pieces: of two million values a single product would lose four digits
    return torch.stack([g @ t for g, t in zip(flat.split(LONG, 1), target.flatten().split(LONG), strict=True)]).sum(0)


def row_square(values: Tensor) -> Tensor:
    """Σ v² of every row of (R, k), shape (R,)."""
    return _RowSquare.apply(values)


class _RowSquare(torch.autograd.Function):
    """One pass forth and one back. Autograd would write the squares down, and twice the values before it scales them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return _in_pieces(values, lambda piece: torch.linalg.vector_norm(piece, dim=-1).square())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (values,) = ctx.saved_tensors
        return values * (2 * grads[0]).unsqueeze(1)


def _in_pieces(values: Tensor, summed: Callable[[Tensor], Tensor]) -> Tensor:
    """A sum over the last dimension of (R, k). On a CPU the norm adds one value after another, and of a million values loses three of
    seven digits; sums of pieces lose none, and take no longer.
    """
    whole = values.shape[1] // PIECE * PIECE
    if values.device.type != "cpu" or not whole:
        return summed(values)
    return summed(values[:, :whole].unflatten(1, (-1, PIECE))).sum(1) + summed(values[:, whole:])


def row_absolute(values: Tensor) -> Tensor:
    """Σ |v| of every row of (R, k), shape (R,)."""
    return _RowAbsolute.apply(values)


class _RowAbsolute(torch.autograd.Function):
    """Autograd would write the absolute values down, and multiply the signs by an expanded slope into a third tensor."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return _in_pieces(values, lambda piece: torch.linalg.vector_norm(piece, 1, dim=-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (values,) = ctx.saved_tensors
        return values.sgn().mul_(grads[0].unsqueeze(1))


def two_numbers(a: Tensor, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """⟨δ_rᵀ a_r, t⟩ and ‖δ_rᵀ a_r‖², each (R,), without forming the products.

    a (R, …, n, inputs), δ (R, …, n, outputs); t is (…, outputs, inputs), or has R rows.
    """
    return _TwoNumbers.apply(a, delta, target)


class _TwoNumbers(torch.autograd.Function):
    """Autograd would multiply by each Gram matrix twice, although it is symmetric, and add what comes back piece by piece."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        projected = a @ target.transpose(-1, -2)  # the layer run with t for its weight
        of_a, of_delta = a @ a.transpose(-1, -2), delta @ delta.transpose(-1, -2)
        ctx.save_for_backward(a, delta, target, projected, of_a, of_delta)
        return (projected * delta).flatten(1).sum(1), (of_a * of_delta).flatten(1).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, delta, target, projected, of_a, of_delta = ctx.saved_tensors
        dot, twice_square = (g.view(-1, *[1] * (a.dim() - 1)) for g in (grads[0], 2 * grads[1]))
        for_a = _add_product((delta @ target).mul_(dot), twice_square * of_delta, a)
        for_delta = _add_product(projected * dot, twice_square * of_a, delta)
        return for_a, for_delta, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right in the type of ``right``; in the place of ``total`` unless types are mixed (autocast)."""
    if not total.dtype == left.dtype == right.dtype:
        return (total + left @ right).to(right.dtype)
    pages = [t.reshape(-1, *t.shape[-2:]) for t in (total, left, right)]
    return pages[0].baddbmm_(pages[1], pages[2]).view(total.shape)


def gram_is_cheaper(n: int, inputs: int, outputs: int) -> bool:
    """Multiplications of the two forms: n²·(inputs + outputs), plus n·inputs·outputs for the dot, against the latter."""
    return n * (inputs + outputs) < inputs * outputs
