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

    def dot(self, delta: Tensor, target: Tensor) -> Tensor:
        """⟨g_r, g*_r⟩, shape (R,); ``target`` is one for all restarts, or has R rows."""
        return row_dot(self.weight_gradient(delta), target)

    def square(self, delta: Tensor) -> Tensor:
        """‖g_r‖², shape (R,)."""
        return self.weight_gradient(delta).flatten(1).square().sum(1)


class Recorder(Protocol):
    """What a rule asks of the tape that runs it."""

    rows: int

    def is_data(self, value: Any) -> bool: ...
    def is_parameter(self, value: Any) -> bool: ...
    def name_of(self, value: Any) -> str | None: ...
    def mark_data(self, value: Tensor) -> Tensor: ...
    def tap(self, output: Tensor, make: Callable[[GradientEdge], Use]) -> Tensor: ...
    def added(self, output: Tensor, bias: Tensor | None, *, dim: int) -> Tensor: ...


def row_dot(gradient: Tensor, target: Tensor) -> Tensor:
    """⟨g_r, t⟩ or ⟨g_r, t_r⟩ for every row r, shape (R,)."""
    flat = gradient.flatten(1)
    return flat @ target.flatten() if target.dim() < gradient.dim() else (flat * target.flatten(1)).sum(1)


def gram_square(a: Tensor, delta: Tensor) -> Tensor:
    """‖δ_rᵀ a_r‖² for a (R, …, n, inputs) and δ (R, …, n, outputs), shape (R,), without forming the products."""
    return _GramSquare.apply(a, delta)


class _GramSquare(torch.autograd.Function):
    """Autograd would multiply once for a and once for aᵀ; the Gram matrices are symmetric, so once is enough."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, delta: Tensor) -> Tensor:
        of_a, of_delta = a @ a.transpose(-1, -2), delta @ delta.transpose(-1, -2)
        ctx.save_for_backward(a, delta, of_a, of_delta)
        return (of_a * of_delta).flatten(1).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, delta, of_a, of_delta = ctx.saved_tensors
        twice = (2 * grads[0]).view(-1, *[1] * (a.dim() - 1))
        return (twice * of_delta) @ a, (twice * of_a) @ delta


def projected_dot(a: Tensor, delta: Tensor, target: Tensor) -> Tensor:
    """⟨δ_rᵀ a_r, t⟩ for t (…, outputs, inputs), or t_r with R rows: the layer run with t for its weight."""
    return ((a @ target.transpose(-1, -2)) * delta).flatten(1).sum(1)


def gram_is_cheaper(n: int, inputs: int, outputs: int) -> bool:
    """Multiplications of the two forms: n²·(inputs + outputs), plus n·inputs·outputs for the dot, against the latter."""
    return n * (inputs + outputs) < inputs * outputs
