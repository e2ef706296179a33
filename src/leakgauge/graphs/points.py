"""Where a computation can be cut, and what a traced model can do there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that crosses a cut: its name and, for a single sample, its shape and number type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Numbers per sample."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Point:
    """A place where the computation can be cut: the tensors alive there, which carry all the cloud needs of x.

    ``operation`` made the last of them. ``aliases`` are the enclosing modules that end there too.
    """

    name: str
    tensors: tuple[TensorSpec, ...]
    operation: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cost:
    """What the edge does up to a point, for one sample.

    ``flops`` counts a multiplication and an addition as two. ``time_share`` is the edge's part of the whole forward
    pass, both measured in the same run; None where time was not asked for.
    """

    parameters: int
    flops: int
    time_share: float | None


class Traced(Protocol):
    """A model that was followed through its computation."""

    @property
    def how(self) -> str:
        """Which way of following worked, and why not an earlier one."""
        ...

    @property
    def any_batch(self) -> bool:
        """Whether the halves take batches of every size as they stand, so that they can be exported so."""
        ...

    @property
    def points(self) -> Mapping[str, Point]:
        """All points by name, from the input to the output."""
        ...

    def edge(self, name: str) -> nn.Module:
        """x to a tuple of tensors."""
        ...

    def cloud(self, name: str) -> nn.Module:
        """These tensors, one argument each, to the model's output."""
        ...

    def values(self, x: Tensor, names: Sequence[str]) -> dict[str, tuple[Tensor, ...]]:
        """The tensors at several points from one forward pass, which ends at the last of them."""
        ...

    def costs(self, x: Tensor, *, repeats: int) -> dict[str, Cost]:
        """Costs of all points, from forward passes of ``x``; time is measured over ``repeats`` passes (0: not at all)."""
        ...
