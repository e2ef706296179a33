"""Clipping the length of the gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.core import Signal
from leakgauge.defenses.rows import column, row_norms
from leakgauge.errors import BadInput


@dataclass(frozen=True)
class Clip:
    """g · min(1, norm / ‖g‖) over all tensors together.

    Ref: Abadi et al. 2016, Algorithm 1 — clip gradient
    """

    norm: float

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise BadInput(f"Clip needs a positive norm, got {self.norm}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: t[0] for name, t in self.by_row({n: t[None] for n, t in signal.items()}, rng=rng).items()}

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same with each row clipped by its own length."""
        factors = (self.norm / row_norms(signal)).clamp(max=1.0)  # infinite, and so 1, for a length of zero
        return {name: t * column(factors, t) for name, t in signal.items()}
