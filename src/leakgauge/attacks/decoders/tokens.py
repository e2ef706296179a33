"""Decoders of a transformer's tokens: all patches in their places, all patches without places, or the class token alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn

from leakgauge.attacks.decoders.deconvolution import Deconvolution
from leakgauge.attacks.decoders.shapes import Decoder, Shape
from leakgauge.attacks.decoders.vector import Vector
from leakgauge.errors import Inapplicable


def grid_of(feature: Shape, image: Shape, before: int | None) -> tuple[int, int, int]:
    """(tokens before the patches, rows, columns) of a feature (tokens, width): a grid of the image's proportions.

    >>> grid_of((257, 128), (3, 64, 64), None), grid_of((33, 8), (1, 32, 64), 1)
    ((1, 16, 16), (1, 4, 8))
    """
    if len(feature) != 2 or len(image) != 3:
        raise Inapplicable(f"a feature of shape {feature} is no list of tokens (tokens, width) of an image {image}")
    proportion = image[1] / image[2]
    rows = math.floor(math.sqrt((feature[0] - (before or 0)) * proportion) + 1e-9)
    columns = round(rows / proportion)
    found = feature[0] - rows * columns
    if rows < 1 or columns < 1 or found < 0 or (before is not None and found != before):
        raise Inapplicable(
            f"{feature[0]} tokens with {before or 'no'} before the patches make no grid of the image's proportions "
            f"{image[1]} to {image[2]}"
        )
    return found, rows, columns


@dataclass(frozen=True)
class TokenGrid:
    """Patch tokens (rows · columns, D) as a map D × rows × columns, then ``decoder``.

    ``before`` tokens ahead of the patches (class and register tokens) are left out; None takes the largest grid that fits.
    """

    decoder: Decoder = field(default_factory=Deconvolution)
    before: int | None = None

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        before, rows, columns = grid_of(feature, image, self.before)
        return nn.Sequential(ToGrid(before, rows, columns), self.decoder((feature[1], rows, columns), image))


@dataclass(frozen=True)
class Flattened:
    """All patch tokens (or the whole map) as one vector, then ``decoder``: the released code's, kept for comparison.

    At (257, 128) and 64 × 64 images its first layer alone has 268 million weights, and the places of the tokens are lost.

    Ref: Liu and Zhu 2025, Figure 7 — attack on the patch tokens of ViT
    """

    decoder: Decoder = field(default_factory=Vector)
    before: int | None = None

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        before = grid_of(feature, image, self.before)[0] if len(feature) == 2 else 0
        values = math.prod(feature) - before * feature[-1]
        return nn.Sequential(ToVector(before), self.decoder((values,), image))


@dataclass(frozen=True)
class ClassToken:
    """One token alone, the first by default, then ``decoder``.

    Ref: Liu and Zhu 2025, Figure 7 — attack on the CLS token of ViT
    """

    decoder: Decoder = field(default_factory=Vector)
    index: int = 0

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        if len(feature) != 2 or not 0 <= self.index < feature[0]:
            raise Inapplicable(f"a feature of shape {feature} has no token number {self.index}")
        return nn.Sequential(ToToken(self.index), self.decoder((feature[1],), image))


class ToGrid(nn.Module):
    """(N, tokens, D) → (N, D, rows, columns), without the first ``before`` tokens."""

    def __init__(self, before: int, rows: int, columns: int) -> None:
        super().__init__()
        self.before, self.rows, self.columns = before, rows, columns

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.before :].transpose(1, 2).unflatten(2, (self.rows, self.columns))


class ToVector(nn.Module):
    """(N, tokens, D) or (N, C, H, W) → (N, values), without the first ``before`` tokens."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.before :].flatten(1)


class ToToken(nn.Module):
    """(N, tokens, D) → (N, D)."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.index]
