"""Sending only the largest entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core import Signal
from leakgauge.errors import BadInput


@dataclass(frozen=True)
class Prune:
    """Sets the ``fraction`` of smallest entries (by magnitude, within each tensor) to zero; the top k stay.

    Ref: Lin et al. 2018, section 3.1 — gradient sparsification
    """

    fraction: float

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise BadInput(f"Prune needs a fraction between 0 and 1, got {self.fraction}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: self._pruned(t) for name, t in signal.items()}

    def _pruned(self, values: Tensor) -> Tensor:
        dropped = round(self.fraction * values.numel())
        if dropped == 0:
            return values.clone()
        flat = values.flatten().clone()
        flat[flat.abs().argsort()[:dropped]] = 0
        return flat.view_as(values)
