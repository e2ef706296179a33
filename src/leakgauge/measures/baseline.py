"""Trivial reconstructions that a verdict has to beat: what you get while knowing next to nothing about an image."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput


def mean_colour(images: Tensor) -> Tensor:
    """Each image (N, C, H, W) replaced by its mean colour; same shape."""
    return blur(images, grid=1)


def blur(images: Tensor, *, grid: int = 4) -> Tensor:
    """Each image (N, C, H, W) reduced to ``grid`` x ``grid`` block means and enlarged bilinearly; same shape.

    A side shorter than ``grid`` keeps all its pixels.
    """
    if grid < 1:
        raise BadInput(f"the grid needs at least one cell per side, got {grid}")
    if images.ndim != 4 or images.numel() == 0 or not images.is_floating_point():
        raise BadInput(f"images must be a non-empty float batch (N, C, H, W), got {images.dtype} {tuple(images.shape)}")
    height, width = images.shape[-2:]
    means = F.adaptive_avg_pool2d(images, (min(grid, height), min(grid, width)))
    return F.interpolate(means, size=(height, width), mode="bilinear", align_corners=False)
