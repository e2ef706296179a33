"""Clips the norm of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.channels.rows import clip_rows
from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(norm=0.1, neutral={"norm": math.inf})
@checked(nan=True)
@dataclass(frozen=True)
class Clip:
    """g · min(1, norm / ‖g‖) over all tensors together: :func:`leakgauge.channels.rows.clip_rows` with one row.

    Clips the whole update. Clipping the gradient of each sample changes how the update is computed: channel ``DPSGD``.
    """

    norm: float

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise BadInput(f"Clip needs a positive norm, got {self.norm}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: t[0] for name, t in self.by_row({n: t[None] for n, t in signal.items()}, rng=rng).items()}

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same with each row clipped by its own norm."""
        return clip_rows(signal, self.norm)
