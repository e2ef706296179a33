"""What every decoder has to know of the feature it reads and of the image it makes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, Protocol, runtime_checkable

import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.errors import Inapplicable

Shape = tuple[int, ...]
"""Shape of one sample, without the batch: (channels, height, width), (tokens, width) or (values,)."""

Activation = Literal["tanh", "prelu", "mixed"]
"""Activation of a decoder's steps; ``"mixed"`` is tanh in the first step and PReLU in all later ones."""


class Decoder(Protocol):
    """Builds a network that turns features (N, \\*feature) into images (N, \\*image) in [0, 1]. Frozen, printable."""

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module: ...


@runtime_checkable
class Calibrated(Protocol):
    """A network that wants to see the training features once, piece by piece, before it is trained."""

    def calibrate(self, pieces: Iterable[Tensor], /) -> None: ...


def feature_map(feature: Shape, image: Shape) -> tuple[int, int, int]:
    """(channels, height, width) of the feature, or a refusal with what would fit."""
    if len(feature) != 3:
        raise Inapplicable(
            f"a feature of shape {feature} is no map of (channels, height, width); use TokenGrid, ClassToken or Vector"
        )
    if len(image) != 3:
        raise Inapplicable(f"a decoder makes images of (channels, height, width), the victim takes {image}")
    channels, height, width = feature
    return channels, height, width


def doublings(side: int, target: int) -> int:
    """How often ``side`` has to be doubled to come closest to ``target``, on a logarithmic scale; never negative.

    >>> doublings(4, 64), doublings(7, 28), doublings(3, 28), doublings(64, 64)
    (4, 2, 3, 0)
    """
    return max(0, round(math.log2(target / side)))


def halved_widths(channels: int, steps: int, *, least: int) -> list[int]:
    """Channels after each step: C/2, C/4, C/8, then no fewer, and never fewer than ``least``.

    >>> halved_widths(512, 4, least=16), halved_widths(16, 2, least=16)
    ([256, 128, 64, 64], [16, 16])
    """
    return [max(least, channels // 2 ** min(step + 1, 3)) for step in range(steps)]


def activation(kind: Activation, step: int) -> nn.Module:
    """The activation of step ``step`` (from 0)."""
    if kind == "tanh" or (kind == "mixed" and step == 0):
        return nn.Tanh()
    return nn.PReLU()


class Pixels(nn.Module):
    """The last sigmoid, at least in float32: in bfloat16 all above 6 becomes 1 with a derivative of 0: such a pixel never comes back."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() if x.dtype.itemsize < 4 else x).sigmoid()


class Resize(nn.Module):
    """Bilinear change to the image's size where doubling has missed it; otherwise nothing."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.size = (height, width)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[-2:]) == self.size:
            return x
        return F.interpolate(x, size=self.size, mode="bilinear", align_corners=False)
