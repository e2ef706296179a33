"""Clips the norm of the gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.channels.rows import as_rows, clip_rows, column, row_norms
from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked

ROUNDING = 1e-5
"""A clipped signal is as long as the norm, up to this."""


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

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain``, clipped."""
        return clip_rows(plain, self.norm)

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent, times the factor of at least 1 that brings it nearest to ``plain``: clipping hides the length of what it
        shortened. A signal shorter than the norm was not clipped."""
        square = row_norms(sent).square()
        along = torch.stack([as_rows(plain[n] * t).double().sum(1) for n, t in sent.items()]).sum(0)
        longer = (along / square.clamp_min(torch.finfo(square.dtype).tiny)).clamp_min(1.0)
        longer = torch.where(square >= (self.norm * (1 - ROUNDING)) ** 2, longer, 1.0)
        return {name: t * column(longer, t) for name, t in sent.items()}
