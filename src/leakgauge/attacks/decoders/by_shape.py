"""The decoder one takes without looking: whichever fits the shape of the feature."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from leakgauge.attacks.decoders.deconvolution import Deconvolution
from leakgauge.attacks.decoders.shapes import Decoder, Shape
from leakgauge.attacks.decoders.tokens import TokenGrid
from leakgauge.attacks.decoders.vector import Narrowed, Vector
from leakgauge.errors import Inapplicable


def _map() -> Decoder:
    return Deconvolution("prelu", start="calm")


def _grid() -> Decoder:
    return TokenGrid(decoder=Deconvolution("prelu", start="calm"))


LONG = 4096
"""Values from which on a vector is narrowed first."""


@dataclass(frozen=True)
class ByShape:
    """``maps`` for (channels, height, width), ``tokens`` for (tokens, width), ``vector`` or ``long`` for (values,).

    Maps and tokens are deconvolved with PReLU from a calm start, which gave away most for its time in ``docs/decoders.md``.
    A vector counts as long above 4096 values, such as the tensors of a cut through a residual unit side by side.
    """

    maps: Decoder = field(default_factory=_map)
    tokens: Decoder = field(default_factory=_grid)
    vector: Decoder = field(default_factory=Vector)
    long: Decoder = field(default_factory=Narrowed)

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        vector = self.long if len(feature) == 1 and feature[0] > LONG else self.vector
        fitting = {3: self.maps, 2: self.tokens, 1: vector}.get(len(feature))
        if fitting is None:
            raise Inapplicable(f"there is no decoder for a feature of shape {feature}; give one that fits")
        return fitting(feature, image)
