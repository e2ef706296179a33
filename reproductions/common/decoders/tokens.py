"""Decoders of a transformer's tokens without their places: all of them as one vector, or the class token alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn

from leakgauge.attacks.decoder import Decoder, Shape, Vector
from leakgauge.errors import Inapplicable
from leakgauge.priors.decoders.networks import grid_of


@dataclass(frozen=True)
class Flattened:
    """All patch tokens (or the whole map) as one vector, then ``decoder``: the released code's, kept for comparison.

    At (257, 128) and 64 × 64 images its first layer alone has 268 million weights, and the places of the tokens are lost.

    Ref: Liu and Zhu 2025, Figure 7 — attack on the patch tokens of ViT
    """

    decoder: Decoder = field(default_factory=Vector)

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        before = grid_of(feature, image, None)[0] if len(feature) == 2 else 0
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
