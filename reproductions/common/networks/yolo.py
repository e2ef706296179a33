"""A one-stage detector of the YOLOv8 kind, nano size: backbone, feature pyramid, and a head without anchor boxes.

Written from the papers: Wang et al. 2020 (cross-stage partial blocks), Lin et al. 2017 and Liu et al. 2018 (pyramids up and down),
He et al. 2014 (pooling at several sizes), Li et al. 2020 (a distribution for each side of a box).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded
from reproductions.common.networks.resnet import Block, PreActivationBlock

Variant = Literal["canonical", "pre_activation", "basic_block"]
BINS = 16
"""Values each side's distance is distributed over."""
STRIDES = (8, 16, 32)


class YOLO(nn.Module):
    """Images (B, 3, H, W) to (B, 4 · BINS + classes, A): for each of A places, logits of four distances and of the classes.

    The A places are the cells of three grids of stride 8, 16 and 32, row by row, finest first. H and W are multiples of 32.
    ``variant`` chooses what stands where YOLOv8 has its cross-stage partial block: that block (``"canonical"``), or as many
    residual blocks of ResNet as it holds bottlenecks, in pre-activation order or, one only, BasicBlocks of the original order.
    ``width`` is the number of channels after the first layer.

    With 80 classes the canonical network has 3,157,184 parameters: the published 3,157,200 count 16 more, the constants
    0 … 15 with which the expected distance is computed, here no parameters.
    """

    def __init__(self, *, classes: int = 80, width: int = 16, variant: Variant = "canonical", seed: int = 0) -> None:
        super().__init__()
        if variant not in ("canonical", "pre_activation", "basic_block"):
            raise BadInput(f"YOLO needs variant 'canonical', 'pre_activation' or 'basic_block', got {variant!r}")
        self.classes = classes
        one, two, four, eight, sixteen = (width << i for i in range(5))

        def stage(channels: int, out: int, depth: int, shortcut: bool) -> nn.Module:
            return _stage(variant, channels, out, depth=depth, shortcut=shortcut)

        with seeded(seed):
            self.stem = nn.Sequential(Conv(3, one, 3, 2), Conv(one, two, 3, 2), stage(two, two, 1, True))
            self.stage3 = nn.Sequential(Conv(two, four, 3, 2), stage(four, four, 2, True))
            self.stage4 = nn.Sequential(Conv(four, eight, 3, 2), stage(eight, eight, 2, True))
            self.stage5 = nn.Sequential(Conv(eight, sixteen, 3, 2), stage(sixteen, sixteen, 1, True), Pooled(sixteen))
            self.up = nn.Upsample(scale_factor=2, mode="nearest")
            self.down4 = stage(eight + sixteen, eight, 1, False)
            self.down3 = stage(four + eight, four, 1, False)
            self.to4 = Conv(four, four, 3, 2)
            self.up4 = stage(four + eight, eight, 1, False)
            self.to5 = Conv(eight, eight, 3, 2)
            self.up5 = stage(eight + sixteen, sixteen, 1, False)
            sizes = (four, eight, sixteen)
            inner = max(four, min(classes, 100))
            self.box = nn.ModuleList(_head(size, max(16, four // 4, 4 * BINS), 4 * BINS) for size in sizes)
            self.cls = nn.ModuleList(_head(size, inner, classes) for size in sizes)
            for head in self.cls:  # few places hold an object: they start at a probability of 1 %
                assert isinstance(head, nn.Sequential)
                last = head[-1]
                assert isinstance(last, nn.Conv2d)
                assert last.bias is not None
                nn.init.constant_(last.bias, -math.log(99))

    def forward(self, x: Tensor) -> Tensor:
        c3 = self.stage3(self.stem(x))
        c4 = self.stage4(c3)
        c5 = self.stage5(c4)
        p4 = self.down4(torch.cat([self.up(c5), c4], 1))
        p3 = self.down3(torch.cat([self.up(p4), c3], 1))
        n4 = self.up4(torch.cat([self.to4(p3), p4], 1))
        n5 = self.up5(torch.cat([self.to5(n4), c5], 1))
        levels = zip(self.box, self.cls, (p3, n4, n5), strict=True)
        return torch.cat([torch.cat([box(level), cls(level)], 1).flatten(2) for box, cls, level in levels], 2)


class Conv(nn.Module):
    """Convolution, batch normalisation, SiLU."""

    def __init__(self, channels: int, out: int, size: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """Two 3×3 convolutions, with a shortcut or without."""

    def __init__(self, channels: int, *, shortcut: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = Conv(channels, channels, 3), Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.conv1(x))
        return x + out if self.shortcut else out


class CrossStage(nn.Module):
    """Half of the channels pass by, half run through bottlenecks; every intermediate result is kept and merged."""

    def __init__(self, channels: int, out: int, *, depth: int, shortcut: bool) -> None:
        super().__init__()
        self.inner = out // 2
        self.split = Conv(channels, 2 * self.inner)
        self.blocks = nn.ModuleList(Bottleneck(self.inner, shortcut=shortcut) for _ in range(depth))
        self.merge = Conv((2 + depth) * self.inner, out)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.split(x).split(self.inner, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.merge(torch.cat(parts, 1))


class Pooled(nn.Module):
    """The input beside its maxima over 5×5, 9×9 and 13×13, made by pooling one after another."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = Conv(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.merge = Conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.reduce(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.merge(torch.cat(parts, 1))


def _stage(variant: Variant, channels: int, out: int, *, depth: int, shortcut: bool) -> nn.Module:
    if variant == "canonical":
        return CrossStage(channels, out, depth=depth, shortcut=shortcut)
    if variant == "basic_block":
        return Block(channels, out, 1)
    rest = (PreActivationBlock(out, out, 1) for _ in range(depth - 1))
    return nn.Sequential(PreActivationBlock(channels, out, 1), *rest)


def _head(channels: int, inner: int, out: int) -> nn.Sequential:
    return nn.Sequential(Conv(channels, inner, 3), Conv(inner, inner, 3), nn.Conv2d(inner, out, 1))
