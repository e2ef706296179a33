"""The decoder of Yang et al. as the split-inference paper adapts it: transposed convolutions from the feature to the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from leakgauge.attacks.decoders.placement import Placement
from leakgauge.attacks.decoders.shapes import (
    Activation,
    Pixels,
    Resize,
    Shape,
    activation,
    doublings,
    feature_map,
    halved_widths,
)
from leakgauge.errors import BadInput

Start = Literal["torch", "calm"]
"""How a decoder's last layer begins."""


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
        return nn.Sequential(*layers, Resize(*image[1:]), last, Pixels())
