"""An untrained network whose weights are the image: what it can paint easily is smooth and has edges, without any data.

The idea is that of Ulyanov et al. 2018, *Deep Image Prior*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from leakgauge.inversion.latent import SPREAD

LEAK, EPSILON = 0.2, 1e-5


@dataclass(frozen=True)
class ImageNetwork:
    """Maps rows of weights (N, ``size``) to images in [0, 1], (N, 3, side, side), from one fixed noise input.

    ``depth`` convolutions halve the picture and as many double it again, each followed by a normalisation of every channel over its own
    pixels. Drawn with the deviation that :class:`~leakgauge.inversion.Latent` starts with, the weights have the usual scale of an
    untrained network.
    """

    width: int = 64
    depth: int = 3
    inputs: int = 16
    side: int = 32
    seed: int = 0

    @property
    def layers(self) -> list[tuple[int, int, int]]:
        """Channels in, channels out, side of the kernel."""
        inner = [(self.width, self.width, 3)] * (2 * self.depth - 1)
        return [(self.inputs, self.width, 3), *inner, (self.width, 3, 1)]

    @property
    def size(self) -> int:
        return sum(n * m * k * k + 2 * m for n, m, k in self.layers)

    def __call__(self, weights: Tensor, /) -> Tensor:
        rows = len(weights)
        x = _noise(self, weights.device, weights.dtype).repeat(1, rows, 1, 1)
        at = 0
        for number, (before, after, kernel) in enumerate(self.layers):
            count, last = before * after * kernel**2, number == 2 * self.depth
            own, at = weights[:, at : at + count + 2 * after], at + count + 2 * after
            scale = math.sqrt((1 if last else 2) / (before * kernel**2)) / SPREAD
            filters = own[:, :count].reshape(rows * after, before, kernel, kernel) * scale
            shift, gain = own[:, count:].reshape(rows, 2, after, 1, 1).unbind(1)
            if self.depth <= number < 2 * self.depth:
                x = functional.interpolate(x, scale_factor=2, mode="bilinear")
            if kernel > 1:
                x = functional.pad(x, (kernel // 2,) * 4, mode="reflect")
            x = functional.conv2d(x, filters, stride=2 if number < self.depth else 1, groups=rows)
            x = x.unflatten(1, (rows, after)).squeeze(0)
            if last:
                return (x + shift).sigmoid()
            spread, mean = torch.var_mean(x, (2, 3), keepdim=True, correction=0)
            x = (x - mean) * (spread + EPSILON).rsqrt() * (1 + gain) + shift
            x = functional.leaky_relu(x, LEAK).flatten(0, 1)[None]
        raise AssertionError("the last layer returns")


@cache
def _noise(of: ImageNetwork, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Made once: a recorded step must read the same tensor every time."""
    rng = torch.Generator().manual_seed(of.seed)
    return torch.rand(1, of.inputs, of.side, of.side, generator=rng).sub(0.5).to(device, dtype)
