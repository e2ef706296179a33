"""The replay of a single sample's clipped gradient: that of its gradient, shortened row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leakgauge.channels.rows import column
from leakgauge.engine.fast import ByRules
from leakgauge.engine.observed import Observed
from leakgauge.engine.reference import Replay, Weights
from leakgauge.engine.vmapped import StackedReplay


@dataclass(frozen=True, eq=False)
class ClippedReplay:
    """s_r g_r for the gradients g_r of the rows of ``of``, with s_r = min(1, C / ‖g_r‖) and C = ``clip``."""

    of: Replay
    observed: Observed
    clip: float

    @property
    def names(self) -> tuple[str, ...]:
        return self.of.names

    @cached_property
    def factors(self) -> Tensor:
        """s, (R,). The norm is that of the whole gradient, whatever tensors a distance weighs."""
        squares = self.of.square(dict.fromkeys(self.names, 1.0))
        return (self.clip / squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()).clamp(max=1.0)

    def dot(self, weights: Weights) -> Tensor:
        return self.factors * self.of.dot(weights)

    def square(self, weights: Weights) -> Tensor:
        return self.factors.square() * self.of.square(weights)

    def l2(self, weights: Weights) -> Tensor:
        return self._formed(weights).l2(weights)

    def l1(self, weights: Weights) -> Tensor:
        return self._formed(weights).l1(weights)

    def _formed(self, weights: Weights) -> StackedReplay:
        return StackedReplay({name: self.gradient(name) for name in weights}, self.observed)

    def observed_square(self, weights: Weights) -> Tensor:
        return self.observed.square(weights)

    def gradient(self, name: str) -> Tensor:
        whole = self.of.gradient(name)
        return column(self.factors, whole) * whole

    def inputs(self, name: str) -> Tensor:
        return self.of.inputs(name)


@dataclass(frozen=True, eq=False)
class Clipped(ByRules):
    """Replays a channel that clips the gradient of each sample to the length ``clip``, for rows of one sample each that share their whole
    gradient."""

    clip: float = math.inf

    def __call__(self, x: Tensor, y: Tensor) -> Replay:
        return ClippedReplay(super().__call__(x, y), self.observed, self.clip)
