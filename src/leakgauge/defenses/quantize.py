"""Sends fewer bits per entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.rows import as_rows, column
from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(bits=4, neutral={"bits": 32})
@checked
@dataclass(frozen=True)
class Quantize:
    """Rounds each tensor to 2^bits − 1 equally spaced levels from −max|g| to max|g|, including zero.

    With s = max|g| / (2^(bits−1) − 1), entries become s · round(g / s); with 32 bits or more floats stay unchanged.

    Ref: Jacob et al. 2018, section 2.1 — uniform affine quantisation, symmetric form
    """

    bits: int

    def __post_init__(self) -> None:
        if self.bits < 2 or self.bits % 1:
            raise BadInput(f"Quantize needs an integer of at least 2 bits (levels -1, 0, 1), got {self.bits}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: self._rounded(t[None])[0] for name, t in signal.items()}

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same with a separate largest value for each row of each tensor."""
        return {name: self._rounded(t) for name, t in signal.items()}

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain``, rounded."""
        return {name: self._rounded(t) for name, t in plain.items()}

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """``plain``, moved into the bins around what was sent; no entry is beyond the largest, which is sent exactly."""
        return {name: self._in_bins(plain[name], t) for name, t in sent.items()}

    def _in_bins(self, plain: Tensor, sent: Tensor) -> Tensor:
        if self.bits >= 32 or not sent.numel():
            return sent
        largest = column(as_rows(sent).abs().amax(1), sent)
        half = largest / (2 ** (self.bits - 1) - 1) / 2
        return torch.minimum(torch.maximum(plain, (sent - half).maximum(-largest)), (sent + half).minimum(largest))

    def _rounded(self, rows: Tensor) -> Tensor:
        if self.bits >= 32 or not rows.numel():
            return rows.clone()
        flat = as_rows(rows)
        steps = column(flat.abs().amax(1) / (2 ** (self.bits - 1) - 1), rows)
        return torch.where(steps > 0, (rows / steps).round() * steps, rows)
