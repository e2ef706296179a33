"""Points where a computation can be cut, and what a traced model offers there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that crosses a cut: its name and, for a single sample, its shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Numbers per sample."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Point:
    """A point where the computation can be cut: the tensors alive there hold everything about x that the cloud needs.

    ``operation`` produced the last of them. ``aliases`` are the enclosing modules that also end there.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    operation: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class EdgeCost:
    """The edge's cost up to a point, for one sample; ``flops`` counts a multiplication and an addition as two."""

    parameters: int
    flops: int


class Traced(Protocol):
    """A traced model that can be cut."""

    @property
    def how(self) -> str:
        """The tracing method that worked, and why earlier ones failed."""
        ...

    @property
    def any_batch(self) -> bool:
        """Whether the halves take batches of any size without vmap, so they can be exported that way."""
        ...

    @property
    def points(self) -> Mapping[str, Point]:
        """All points by name, from the input to the output."""
        ...

    def edge(self, name: str) -> nn.Module:
        """The half from x to a tuple of tensors."""
        ...

    def cloud(self, name: str) -> nn.Module:
        """The half from these tensors, one argument each, to the model's output."""
        ...

    def values(self, x: Tensor, names: Sequence[str]) -> dict[str, tuple[Tensor, ...]]:
        """The tensors at several points from one forward pass, which stops at the last of them."""
        ...

    def costs(self, x: Tensor) -> dict[str, EdgeCost]:
        """Costs of all points, from forward passes of ``x``."""
        ...
