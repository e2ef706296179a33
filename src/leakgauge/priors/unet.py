"""The network of a diffusion prior: a small U-Net that says which image is behind a noisy one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.errors import BadInput

PATCH = 2
"""Pixels along a side that the first layer takes together: most of the work then happens at half the size."""
HALVINGS = 1
"""How often the size is halved again on the way down."""
GROUPS = 8
FREQUENCIES = 16


class UNet(nn.Module):
    """Predicts the velocity v of a noisy image: ``forward(x, level, label) -> v``, all of shape (N, C, H, W).

    ``image`` is the shape (C, H, W). ``width`` is the number of channels at half the size; a quarter of the size has twice as many.
    ``level`` (N,) in [0, 1] is the share of noise, see :class:`~leakgauge.priors.diffusion.Diffusion`. ``label`` (N,) is a class
    below ``classes``; ``classes`` itself stands for an unknown one. Images whose sides cannot be halved twice are padded with
    their border.
    """

    def __init__(self, image: tuple[int, int, int], *, width: int = 32, classes: int = 0) -> None:
        super().__init__()
        if width < GROUPS or width % GROUPS:
            raise BadInput(f"the width of a diffusion prior must be a multiple of {GROUPS}, got {width!r}")
        self.image: tuple[int, int, int] = image
        self.width: int = width
        self.classes: int = classes
        wide, known = 2 * width, 4 * width
        self.level: nn.Module = nn.Sequential(nn.Linear(2 * FREQUENCIES, known), nn.SiLU(), nn.Linear(known, known))
        self.label: nn.Embedding = nn.Embedding(classes + 1, known)
        self.stem: nn.Module = nn.Conv2d(image[0] * PATCH**2, width, 3, padding=1)
        self.down: nn.Module = _Block(width, width, known)
        self.shrink: nn.Module = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.deep: nn.Module = _Block(width, wide, known)
        self.attend: nn.Module = _Attention(wide)
        self.middle: nn.Module = _Block(wide, wide, known)
        self.rise: nn.Module = _Block(2 * wide, wide, known)
        self.enlarge: nn.Module = nn.Conv2d(wide, width, 3, padding=1)
        self.up: nn.Module = _Block(2 * width, width, known)
        self.norm: nn.Module = nn.GroupNorm(GROUPS, width)
        self.out: nn.Conv2d = nn.Conv2d(width, image[0] * PATCH**2, 3, padding=1)
        nn.init.zeros_(self.label.weight)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor, level: Tensor, label: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        known = F.silu(self.level(_waves(level)) + self.label(label))
        side = PATCH * 2**HALVINGS
        below, beside = -height % side, -width % side
        if below or beside:
            x = F.pad(x, (0, beside, 0, below), mode="replicate")
        first = self.down(self.stem(F.pixel_unshuffle(x, PATCH)), known)
        second = self.deep(self.shrink(first), known)
        h = self.middle(self.attend(second), known)
        h = self.rise(torch.cat((h, second), 1), known)
        h = self.enlarge(F.interpolate(h, scale_factor=2.0))
        h = self.up(torch.cat((h, first), 1), known)
        made = F.pixel_shuffle(self.out(F.silu(self.norm(h))), PATCH)
        return made[..., :height, :width]


class _Block(nn.Module):
    """Two convolutions beside a shortcut; noise level and class scale and shift the middle."""

    def __init__(self, before: int, after: int, known: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(GROUPS, before), nn.Conv2d(before, after, 3, padding=1)
        self.second_norm, self.second = nn.GroupNorm(GROUPS, after), nn.Conv2d(after, after, 3, padding=1)
        self.shift = nn.Linear(known, 2 * after)
        self.beside = nn.Identity() if before == after else nn.Conv2d(before, after, 1)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor, known: Tensor) -> Tensor:
        scale, shift = self.shift(known)[:, :, None, None].chunk(2, 1)
        h = self.second_norm(self.first(F.silu(self.first_norm(x)))) * (1 + scale) + shift
        return self.beside(x) + self.second(F.silu(h))


class _Attention(nn.Module):
    """Every position looks at every other one, with one head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        weights = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).unflatten(2, x.shape[2:]))


def _waves(level: Tensor) -> Tensor:
    """Sines and cosines of the angle whose sine is the level, in octaves: what the network is told of the noise."""
    angle = torch.asin(level.clamp(0, 1))[:, None]
    rates = torch.exp(torch.linspace(0, math.log(64), FREQUENCIES, device=level.device, dtype=level.dtype))
    return torch.cat(((angle * rates).sin(), (angle * rates).cos()), 1)
