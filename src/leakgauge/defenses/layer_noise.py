"""Adds noise of another size to each tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.rows import as_rows, column
from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(relative=0.5, neutral={"relative": 0.0})
@checked
@dataclass(frozen=True)
class LayerNoise:
    """g_l + N(0, σ_l²) with σ_l = relative · decay^l · ‖g_l‖/√d_l for the l-th tensor of d_l entries: first layers get most noise.

    In the manner of OUTPOST, which gives more noise to the layers that reveal more; its risk score of each layer is not computed here.
    The noise of each tensor depends on private data, so there is no guarantee. An adversary who knows the defense knows how noisy each
    tensor is and weighs it by that (:meth:`precision`).

    Ref: Wang et al. 2023, more than enough is too much — noise by layer, according to its risk
    """

    relative: float = 1.0
    decay: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.relative < math.inf or not 0 < self.decay <= 1:
            raise BadInput(f"LayerNoise needs a relative of at least 0 and a decay above 0 and up to 1, got {self}")

    def ratios(self, names: tuple[str, ...]) -> dict[str, float]:
        """Length of the noise on each tensor, in units of the tensor's own."""
        return {name: self.relative * self.decay**number for number, name in enumerate(names)}

    def deviation(self, signal: Signal, /) -> float:
        """Root mean square of the deviations of all entries."""
        ratios = self.ratios(tuple(signal))
        square = sum((ratios[name] * float(t.double().norm())) ** 2 for name, t in signal.items())
        return math.sqrt(square / max(1, sum(t.numel() for t in signal.values())))

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        made = self.by_row({name: t[None] for name, t in signal.items()}, rng=rng)
        return {name: t[0] for name, t in made.items()}

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same with each row as a separate signal."""
        ratios = self.ratios(tuple(signal))
        return {name: t + ratios[name] * self._noise(t, rng) for name, t in signal.items()}

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain`` itself, the mean of what is sent."""
        return plain

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent."""
        return sent

    def precision(self, sent: Signal, /) -> dict[str, float]:
        """1/σ² of each tensor up to a common factor: ‖g̃_l‖² = (1 + ratio²)·‖g_l‖² in the mean, and σ_l² is the noise's part of that."""
        ratios = self.ratios(tuple(sent))
        found = {}
        for name, t in sent.items():
            share = ratios[name] ** 2 / (1 + ratios[name] ** 2)
            variance = share * float(t.double().square().mean()) if t.numel() else 0.0
            found[name] = 1 / variance if variance > 0 else 0.0
        return found

    def _noise(self, rows: Tensor, rng: torch.Generator) -> Tensor:
        """Noise as long as each row, in the mean."""
        entries = max(1, rows[0].numel())
        length = as_rows(rows).double().norm(dim=1) / math.sqrt(entries)
        return column(length, rows) * torch.randn(rows.shape, generator=rng).to(rows)
