"""The decoder one takes without looking: whichever fits the shape of the feature."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn

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

    A map whose channels come last, as Swin's do, is turned first: (height, width, channels) is told by the image's proportions,
    where only the first two sizes have them. More than three sizes are read as one vector.

    Maps and tokens are deconvolved with PReLU from a calm start, which gave away most for its time in ``docs/decoders.md``.
    A vector counts as long above 4096 values, such as the tensors of a cut through a residual unit side by side.
    """

    maps: Decoder = field(default_factory=_map)
    tokens: Decoder = field(default_factory=_grid)
    vector: Decoder = field(default_factory=Vector)
    long: Decoder = field(default_factory=Narrowed)

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        values = math.prod(feature)
        vector = self.long if values > LONG else self.vector
        if not feature or not values:
            raise Inapplicable(f"there is no decoder for a feature of shape {feature}; give one that fits")
        if len(feature) > 3:
            return nn.Sequential(nn.Flatten(), vector((values,), image))
        if channels_last(feature, image):
            return nn.Sequential(ChannelsFirst(), self.maps((*feature[-1:], *feature[:-1]), image))
        return {3: self.maps, 2: self.tokens, 1: vector}[len(feature)](feature, image)


def channels_last(feature: Shape, image: Shape) -> bool:
    """Whether the first two sizes of the feature have the proportions of the image and the last two have not.

    >>> channels_last((7, 7, 96), (3, 28, 28)), channels_last((96, 7, 7), (3, 28, 28)), channels_last((8, 8, 8), (3, 32, 32))
    (True, False, False)
    """
    if len(feature) != 3 or len(image) != 3:
        return False
    (a, b, c), (_, height, width) = feature, image
    return a * width == b * height and b * width != c * height


class ChannelsFirst(nn.Module):
    """(N, height, width, channels) to (N, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)
