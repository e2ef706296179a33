"""Sends the sign of each entry only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors.checked import checked


@example(neutral={"active": False})
@checked
@dataclass(frozen=True)
class Signs:
    """sign(g): −1, 0 or 1 for every entry, one bit and no length. Without ``active`` the signal stays as it is.

    Ref: Bernstein et al. 2018, Algorithm 1 — signSGD
    """

    active: bool = True

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return self.replayed(signal)

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same: every entry is sent alone."""
        return self.replayed(signal)

    def replayed(self, plain: Signal, /) -> Signal:
        """The signs of ``plain``."""
        return {name: t.sign() if self.active else t.clone() for name, t in plain.items()}

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """``plain`` where its sign is the one that was sent, and 0 elsewhere."""
        if not self.active:
            return sent
        return {name: torch.where(plain[name].sign() == t, plain[name], 0.0) for name, t in sent.items()}
