"""Sends a random part of the entries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(fraction=0.9, neutral={"fraction": 0.0})
@checked
@dataclass(frozen=True)
class GradientDropout:
    """Sets each entry to zero with probability ``fraction`` and divides the others by 1 − ``fraction``.

    Which entries were dropped can be seen, so an adversary who knows the defense compares the others only.

    Ref: Srivastava et al. 2014, section 4 — dropped entries, here of the update
    """

    fraction: float

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise BadInput(f"GradientDropout drops a fraction from 0 to less than 1, got {self.fraction}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: self._dropped(t, rng) for name, t in signal.items()}

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same: every entry is drawn alone."""
        return self(signal, rng=rng)

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain`` with entries dropped that are always the same, which lose as much as any others."""
        return self(plain, rng=torch.Generator().manual_seed(0))

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent, without its scaling, and ``plain`` where an entry was dropped."""
        return {name: torch.where(t != 0, t * (1 - self.fraction), plain[name]) for name, t in sent.items()}

    def shown(self, sent: Signal, /) -> dict[str, Tensor]:
        """The entries that are not zero."""
        return {name: t != 0 for name, t in sent.items()}

    def _dropped(self, entries: Tensor, rng: torch.Generator) -> Tensor:
        kept = torch.rand(entries.shape, generator=rng).to(entries.device) >= self.fraction
        return torch.where(kept, entries / (1 - self.fraction), 0.0).to(entries.dtype)
