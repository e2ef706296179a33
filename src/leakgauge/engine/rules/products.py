"""Products δᵀa of a layer's output gradient and its input, their distance to the observation, and what is known without forming them:

    ⟨g_r, g*⟩ = Σ (a_r g*ᵀ) ∘ δ_r            ‖g_r‖² = Σ (a_r a_rᵀ) ∘ (δ_r δ_rᵀ)        (Gram form)

Autograd returns the derivatives of such products transposed in memory, and later operations then read and write out of order: on
ViT-Base this cost a quarter of a step on a GPU. Here they have the memory layout of δ and a.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakgauge.engine.fused import chain
from leakgauge.engine.rules.sums import squares_of_rows

ALIGNED = 4
"""A GPU reads 16 bytes at a time: a product with a shared or last dimension of 197 takes about twice as long as with 200."""


def padding_rows(rows: int, device: torch.device) -> int:
    """How many rows of zeros to append on a GPU."""
    return -rows % ALIGNED if device.type == "cuda" else 0


def pad_rows(rows: Tensor, extra: int) -> Tensor:
    """Append ``extra`` rows of zeros to each page of (…, rows, width)."""
    return torch.nn.functional.pad(rows, (0, 0, 0, extra)) if extra else rows


def plain_types(*tensors: Tensor) -> bool:
    """Whether these can be multiplied directly: one type, and no autocast that would choose another."""
    kinds, device = {t.dtype for t in tensors}, tensors[0].device.type
    return len(kinds) == 1 and not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device))


def product(delta: Tensor, a: Tensor) -> Tensor:
    """δ_rᵀ a_r for every r, (R, outputs, inputs), with δ (R, n, outputs) and a (R, n, inputs)."""
    if not plain_types(delta, a):
        return delta.transpose(1, 2) @ a
    return _Product.apply(delta, a)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, delta: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(delta, a)
        return delta.transpose(1, 2) @ a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        delta, a = ctx.saved_tensors
        return a @ grads[0].transpose(1, 2), delta @ grads[0]


def compare_product(delta: Tensor, a: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """‖δ_rᵀ a_r − t_r‖², (R,), and the difference itself, (R, outputs, inputs); ``target`` is one for all r, or has R rows."""
    return _CompareProduct.apply(delta, a, target)


@chain
def _subtract(formed: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The difference, and the squares of its rows."""
    difference = formed - target
    return difference, squares_of_rows(difference.flatten(1))


class _CompareProduct(torch.autograd.Function):
    """Scales δ and a, which are small, by the slope of the square, and not the difference; that is added only if requested."""

    @staticmethod
    def forward(ctx: Any, delta: Tensor, a: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        difference, square = _subtract(delta.transpose(1, 2) @ a, target)
        ctx.save_for_backward(delta, a, difference)
        ctx.set_materialize_grads(False)
        return square, difference

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (delta, a, difference), (of_square, of_difference) = ctx.saved_tensors, grads
        twice = None if of_square is None else (2 * of_square).view(-1, 1, 1)
        if of_difference is None and twice is None:
            return None, None, None
        if of_difference is None:
            assert twice is not None
            return (a * twice) @ difference.transpose(1, 2), (delta * twice) @ difference, None
        whole = of_difference if twice is None else torch.addcmul(of_difference, difference, twice)
        return a @ whole.transpose(1, 2), delta @ whole, None


def sum_product(delta: Tensor, a: Tensor) -> Tensor:
    """Σ_n δ ∘ a of (R, n, width), shape (R, width)."""
    return _SumProduct.apply(delta, a)


class _SumProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, delta: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(delta, a)
        return _sum(delta, a)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        delta, a = ctx.saved_tensors
        return _spread(grads[0].unsqueeze(1), delta, a)


@chain
def _sum(delta: Tensor, a: Tensor) -> Tensor:
    return (delta * a).sum(1)


@chain
def _spread(slope: Tensor, delta: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return slope * a, slope * delta


def two_numbers(a: Tensor, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """⟨δ_rᵀ a_r, t⟩ and ‖δ_rᵀ a_r‖², each (R,), without forming the products.

    a (R, …, n, inputs), δ (R, …, n, outputs); t is (…, outputs, inputs), or has R rows.
    """
    return _TwoNumbers.apply(a, delta, target)


class _TwoNumbers(torch.autograd.Function):
    """Autograd would multiply by each Gram matrix twice although it is symmetric, and sum the results piece by piece."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        projected = a @ target.transpose(-1, -2)  # the layer with t as its weight
        extra = padding_rows(a.shape[-2], a.device) if plain_types(a, delta) else 0
        long_a, long_delta = pad_rows(a, extra), pad_rows(delta, extra)
        of_a, of_delta = a @ long_a.transpose(-1, -2), delta @ long_delta.transpose(-1, -2)
        ctx.save_for_backward(long_a, long_delta, target, projected, of_a, of_delta)
        return (projected * delta).flatten(1).sum(1), (of_a * of_delta).flatten(1).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        long_a, long_delta, target, projected, of_a, of_delta = ctx.saved_tensors
        delta = long_delta[..., : projected.shape[-2], :]
        dot, twice_square = (g.view(-1, *[1] * (long_a.dim() - 1)) for g in (grads[0], 2 * grads[1]))
        for_a = _add_product((delta @ target).mul_(dot), twice_square * of_delta, long_a)
        for_delta = _add_product(projected * dot, twice_square * of_a, long_delta)
        return for_a, for_delta, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """total + left @ right in the type of ``right``; in place unless types are mixed (autocast)."""
    if not total.dtype == left.dtype == right.dtype:
        return (total + left @ right).to(right.dtype)
    pages = [t.reshape(-1, *t.shape[-2:]) for t in (total, left, right)]
    return pages[0].baddbmm_(pages[1], pages[2]).view(total.shape)


def gram_is_cheaper(n: int, inputs: int, outputs: int) -> bool:
    """Compares multiplications: n²·(inputs + outputs) plus n·inputs·outputs for the dot, against the cost of the gradient."""
    return n * (inputs + outputs) < inputs * outputs
