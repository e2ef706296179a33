"""Networks that turn a transmitted feature back into an image, built from the two shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.errors import BadInput, Inapplicable

Shape = tuple[int, ...]
"""Shape of one sample, without the batch: (channels, height, width), (tokens, width) or (values,)."""

Activation = Literal["tanh", "prelu", "mixed"]
"""Activation of a decoder's steps; ``"mixed"`` is tanh in the first step and PReLU in all later ones."""


Start = Literal["torch", "calm"]
"""How a decoder's last layer begins."""


FIRST = 4
"""Side of the first map."""

LONG = 4096
"""Values from which on a vector is narrowed first."""


class Decoder(Protocol):
    """Builds a network that turns features (N, \\*feature) into images (N, \\*image) in [0, 1]. Frozen, printable."""

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module: ...


@runtime_checkable
class Calibrated(Protocol):
    """A network that wants to see the training features once, piece by piece, before it is trained."""

    def calibrate(self, pieces: Iterable[Tensor], /) -> None: ...


class Placement(Protocol):
    """The block after step ``step`` (from 0) of ``steps``, which has ``channels`` channels."""

    def __call__(self, step: int, steps: int, channels: int, /) -> nn.Module: ...


@dataclass(frozen=True)
class Deconvolution:
    """Steps of transposed convolution (4 × 4, stride 2), batch normalisation and activation; then 3 × 3 and a sigmoid.

    Channels go C, C/2, C/4, C/8 and stay there, with at least ``least_width``: 4 × 4 features of 64 × 64 images take four
    steps, 32 × 32 ones take one. ``activation`` is ``"tanh"`` (Yang et al.), ``"prelu"``, or ``"mixed"`` (the released code:
    tanh in the first step). ``attention`` says which attention block follows which step.

    ``start`` says how the last layer begins: ``"torch"`` as the library draws it, by its outputs instead of its inputs, which
    on grey images puts some pixels so far into the sigmoid's end that they stay white for good; ``"calm"`` by its inputs.

    Deviations: a feature already as large as the image gets one step of 3 × 3 with stride 1; where doubling misses the
    image's size, the last map is resized bilinearly. ``least_width`` only matters for networks narrower than the paper's.

    Ref: Yang et al. 2019, inversion model — image from features by transposed convolutions; Liu and Zhu 2025, section 4.1 —
    PReLU in place of tanh
    """

    activation: Activation = "mixed"
    attention: Placement | None = None
    least_width: int = 16
    start: Start = "torch"

    def __post_init__(self) -> None:
        if self.activation not in ("tanh", "prelu", "mixed"):
            raise BadInput(f"a decoder's activation is 'tanh', 'prelu' or 'mixed', got {self.activation!r}")
        if self.start not in ("torch", "calm"):
            raise BadInput(f"a decoder's last layer starts as 'torch' or 'calm', got {self.start!r}")

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        channels, height, _ = feature_map(feature, image)
        steps = doublings(height, image[1])
        layers: list[nn.Module] = []
        widths = halved_widths(channels, max(1, steps), least=self.least_width)
        for step, width in enumerate(widths):
            up = (4, 2, 1) if steps else (3, 1, 1)
            layers += [
                nn.ConvTranspose2d(channels, width, *up),
                nn.BatchNorm2d(width),
                activation(self.activation, step),
            ]
            if self.attention is not None:
                layers.append(self.attention(step, len(widths), width))
            channels = width
        last = nn.ConvTranspose2d(channels, image[0], 3, 1, 1, bias=False)
        if self.start == "calm":
            with torch.no_grad():
                last.weight.mul_((image[0] / channels) ** 0.5)
        return nn.Sequential(*layers, Resize(*image[1:]), last, Float32Sigmoid())


@dataclass(frozen=True)
class Vector:
    """nz → 4 × 4 (transposed convolution 4 × 4, stride 1), then doublings (4 × 4, stride 2), the last one to the image.

    Channels halve with each doubling and end at ``width``: 8g, 4g, 2g, g for 64 × 64 images and g = ``width`` (128 in
    Yang et al., 64 in the released code of the split-inference paper). Batch normalisation and ``activation`` after each
    step, a sigmoid at the end.

    Deviations: where doubling misses the image's size, the last map is resized bilinearly before the sigmoid.

    Ref: Yang et al. 2019, inversion model — image from features by transposed convolutions
    """

    width: int = 64
    activation: Activation = "tanh"

    def __post_init__(self) -> None:
        if self.activation not in ("tanh", "prelu", "mixed") or self.width < 1:
            raise BadInput(f"Vector needs a positive width and activation 'tanh', 'prelu' or 'mixed', got {self!r}")

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        if len(feature) != 1:
            raise Inapplicable(f"Vector reads a feature of one dimension, got {feature}")
        _require_image(image)
        steps = max(1, doublings(FIRST, image[1]))
        channels = self.width * 2 ** (steps - 1)
        layers: list[nn.Module] = [nn.Unflatten(1, (-1, 1, 1)), nn.ConvTranspose2d(feature[0], channels, FIRST, 1, 0)]
        for step in range(steps):
            layers += [nn.BatchNorm2d(channels), activation(self.activation, step)]
            narrower = image[0] if step == steps - 1 else channels // 2
            layers.append(nn.ConvTranspose2d(channels, narrower, 4, 2, 1))
            channels = narrower
        return nn.Sequential(*layers, Resize(*image[1:]), Float32Sigmoid())


@dataclass(frozen=True)
class Narrowed:
    """A linear layer from a long vector to ``values`` numbers, batch normalisation, then ``decoder``.

    The first layer of :class:`Vector` has 16 · 8g weights per input; a vector of 100,000 values would take 800 million.
    """

    decoder: Decoder = field(default_factory=Vector)
    values: int = 256

    def __post_init__(self) -> None:
        if self.values < 1:
            raise BadInput(f"Narrowed needs at least one value to pass on, got {self.values}")

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        if len(feature) != 1:
            raise Inapplicable(f"Narrowed reads a feature of one dimension, got {feature}")
        narrow = nn.Linear(feature[0], self.values, bias=False)
        return nn.Sequential(narrow, nn.BatchNorm1d(self.values), self.decoder((self.values,), image))


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


def _map() -> Decoder:
    return Deconvolution("prelu", start="calm")


def _grid() -> Decoder:
    return TokenGrid(decoder=Deconvolution("prelu", start="calm"))


@dataclass(frozen=True)
class ByShape:
    """``maps`` for (channels, height, width), ``tokens`` for (tokens, width), ``vector`` or ``long`` for (values,).

    A map whose channels come last, as Swin's do, is turned first: (height, width, channels) is recognised by the image's proportions,
    where only the first two sizes have them. More than three sizes are read as one vector.

    Maps and tokens are deconvolved with PReLU from a calm start, which gave away most for its time in ``docs/split.md``.
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


def feature_map(feature: Shape, image: Shape) -> tuple[int, int, int]:
    """(channels, height, width) of the feature, or a refusal with what would fit."""
    if len(feature) != 3:
        raise Inapplicable(
            f"a feature of shape {feature} is no map of (channels, height, width); use TokenGrid or Vector"
        )
    _require_image(image)
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


def _require_image(image: Shape) -> None:
    if len(image) != 3:
        raise Inapplicable(f"a decoder makes images of (channels, height, width), the victim takes {image}")


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


def channels_last(feature: Shape, image: Shape) -> bool:
    """Whether the first two sizes of the feature have the proportions of the image and the last two have not.

    >>> channels_last((7, 7, 96), (3, 28, 28)), channels_last((96, 7, 7), (3, 28, 28)), channels_last((8, 8, 8), (3, 32, 32))
    (True, False, False)
    """
    if len(feature) != 3 or len(image) != 3:
        return False
    (a, b, c), (_, height, width) = feature, image
    return a * width == b * height and b * width != c * height


class Float32Sigmoid(nn.Module):
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


class ToGrid(nn.Module):
    """(N, tokens, D) → (N, D, rows, columns), without the first ``before`` tokens."""

    def __init__(self, before: int, rows: int, columns: int) -> None:
        super().__init__()
        self.before, self.rows, self.columns = before, rows, columns

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.before :].transpose(1, 2).unflatten(2, (self.rows, self.columns))


class ChannelsFirst(nn.Module):
    """(N, height, width, channels) to (N, channels, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 1, 2)
