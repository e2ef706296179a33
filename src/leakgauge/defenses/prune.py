"""Sends only the largest entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.rows import as_rows
from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(fraction=0.9, neutral={"fraction": 0.0})
@checked(nan=True)
@dataclass(frozen=True)
class Prune:
    """Sets the ``fraction`` of smallest entries (by magnitude, within each tensor) to zero and keeps the largest.

    Ref: Lin et al. 2018, section 3.1 — gradient sparsification
    """

    fraction: float

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise BadInput(f"Prune needs a fraction between 0 and 1, got {self.fraction}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: self._pruned(t[None])[0] for name, t in signal.items()}

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same within each row of each tensor."""
        return {name: self._pruned(t) for name, t in signal.items()}

    def _pruned(self, rows: Tensor) -> Tensor:
        flat = as_rows(rows)
        dropped = round(self.fraction * flat.shape[1])
        if dropped == 0:
            return rows.clone()
        return flat.scatter(1, flat.abs().argsort(1)[:, :dropped], 0.0).view_as(rows)
