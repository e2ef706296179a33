"""Sends only the largest entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.rows import as_rows, column
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

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain``, pruned."""
        return {name: self._pruned(t) for name, t in plain.items()}

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent, where it was; elsewhere ``plain``, bounded by the smallest entry that was kept."""
        return {name: self._unpruned(plain[name], t) for name, t in sent.items()}

    def _unpruned(self, plain: Tensor, sent: Tensor) -> Tensor:
        flat = as_rows(sent)
        dropped = round(self.fraction * flat.shape[1])
        if dropped == 0:
            return sent
        kept = flat != 0
        smallest = torch.where(kept, flat.abs(), torch.inf).amin(1)
        smallest = torch.where((~kept).sum(1) > dropped, 0.0, smallest)  # a kept entry is 0, so all pruned ones are
        bound = column(smallest, sent)
        return torch.where(sent != 0, sent, plain.clamp(-bound, bound))

    def _pruned(self, rows: Tensor) -> Tensor:
        flat = as_rows(rows)
        dropped = round(self.fraction * flat.shape[1])
        if dropped == 0:
            return rows.clone()
        return flat.scatter(1, flat.abs().argsort(1)[:, :dropped], 0.0).view_as(rows)
