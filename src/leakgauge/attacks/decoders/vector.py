"""The decoder of Yang et al. from a vector: one value per channel, grown to 4 × 4 and then doubled."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from leakgauge.attacks.decoders.shapes import Activation, Decoder, Pixels, Resize, Shape, activation, doublings
from leakgauge.errors import BadInput, Inapplicable

FIRST = 4
"""Side of the first map."""


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
            raise Inapplicable(f"Vector reads a feature of one dimension, got {feature}; use Flattened or ClassToken")
        if len(image) != 3:
            raise Inapplicable(f"a decoder makes images of (channels, height, width), the victim takes {image}")
        steps = max(1, doublings(FIRST, image[1]))
        channels = self.width * 2 ** (steps - 1)
        layers: list[nn.Module] = [nn.Unflatten(1, (-1, 1, 1)), nn.ConvTranspose2d(feature[0], channels, FIRST, 1, 0)]
        for step in range(steps):
            layers += [nn.BatchNorm2d(channels), activation(self.activation, step)]
            narrower = image[0] if step == steps - 1 else channels // 2
            layers.append(nn.ConvTranspose2d(channels, narrower, 4, 2, 1))
            channels = narrower
        return nn.Sequential(*layers, Resize(*image[1:]), Pixels())


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
