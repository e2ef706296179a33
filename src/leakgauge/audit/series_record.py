"""What a record holds of series: the values to draw, original, reconstruction and null run over each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

SHOWN = 8
"""Series of a batch whose values are kept."""
POINTS = 1000
"""Most values of a channel that are kept; of longer series every second, third, …"""

Curves = tuple[tuple[tuple[float, ...], ...], ...]
"""By series, channel and time."""


@dataclass(frozen=True)
class SeriesFacts:
    """Values of the first series of a batch, in their own unit, every ``stride``-th, between ``low`` and ``high``."""

    low: float
    high: float
    stride: int
    truth: Curves
    found: Curves
    null: Curves


def series_facts(images: Mapping[str, Tensor], bounds: tuple[float, float]) -> SeriesFacts:
    """The facts of a result's ``images``, (N, channels, 1, length) in [0, 1], in the order of the truth."""
    (low, high), length = bounds, images["truth"].shape[-1]
    stride = -(-length // POINTS)

    def curves(kind: str) -> Curves:
        values = low + (high - low) * images[kind][:SHOWN, :, 0, ::stride].double()
        return tuple(tuple(tuple(round(v, 5) for v in channel) for channel in one) for one in values.tolist())

    return SeriesFacts(low, high, stride, curves("truth"), curves("reconstruction"), curves("null"))
