"""The result of a layer rule: how one use of a weight contributes to the gradient of each restart.

a (R, n, inputs) is the layer's input, δ (R, n, outputs) the derivative of the loss with respect to its output, with
n = samples · positions of one restart. The gradient of restart r is δ_rᵀ a_r.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.autograd.graph import GradientEdge

from leakgauge.channels.rows import as_rows
from leakgauge.engine.rules.sums import row_dot, row_square


@dataclass(frozen=True, eq=False)
class Use(ABC):
    """One use of a named ``weight`` and/or ``bias`` in a layer, with the graph edge of its output."""

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
        """Whether dot and norm are cheaper to compute without the gradient."""
        return False

    def numbers(self, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """⟨g_r, g*_r⟩ and ‖g_r‖², each (R,); ``target`` is one for all restarts, or has R rows."""
        gradient = self.weight_gradient(delta)
        return row_dot(gradient, target), row_square(as_rows(gradient))

    def compare(self, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """‖g_r − g*_r‖², (R,), and the difference, (R, k); ``target`` as above."""
        difference = as_rows(self.weight_gradient(delta) - target)
        return row_square(difference), difference


class Recorder(Protocol):
    """What a rule needs from the tape that runs it."""

    rows: int

    def __enter__(self) -> Any: ...
    def __exit__(self, *error: Any) -> None: ...
    def is_data(self, value: Any) -> bool: ...
    def axis(self, value: Any) -> int | None: ...
    def is_parameter(self, value: Any) -> bool: ...
    def name_of(self, value: Any) -> str | None: ...
    def mark_data(self, value: Tensor) -> Tensor: ...
    def tap(self, output: Tensor, make: Callable[[GradientEdge], Use]) -> Tensor: ...
    def add_bias(self, output: Tensor, bias: Tensor | None, *, dim: int) -> Tensor: ...
