"""Clipping the length of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.core import Signal
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
        length = math.sqrt(sum(float(t.double().square().sum()) for t in signal.values()))
        factor = min(1.0, self.norm / length) if length else 1.0
        return {name: t * factor for name, t in signal.items()}
