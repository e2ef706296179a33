"""Where things are in a picture: how similar two images are without any detail.

A gradient can reveal positions, outlines and colours in a picture so saturated or grainy that SSIM and PSNR prefer a grey one. A human
still recognises such a picture, and so does a correlation of block means.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from leakgauge.measures.image import check_pair
from leakgauge.measures.reidentification import normalised_correlation, pattern

GRID = 8
"""Blocks per side: twice as many as the trivial baseline keeps."""


def layout(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of the layouts of each pair of images (N, C, H, W) in [0, 1], shape (N,), within [-1, 1].

    The normalised correlation of the 8×8 block means after subtracting each channel's mean, so brightness, contrast and mean
    colour do not count. 0 if an image is flat. A side shorter than 8 keeps all its pixels.

    >>> import torch
    >>> half = torch.zeros(1, 1, 16, 16)
    >>> half[..., :8] = 0.2
    >>> [round(value, 6) for value in layout(torch.cat([half, 1 - half]), torch.cat([half, half])).tolist()]
    [1.0, -1.0]
    """
    a, b = check_pair(a, b)
    return (pattern(_blocks(a)) * pattern(_blocks(b))).sum(1)


def layout_pairs(a: Tensor, b: Tensor) -> Tensor:
    """As :func:`layout`, of every image of ``a`` (N) with every image of ``b`` (M), shape (N, M)."""
    return normalised_correlation(_blocks(a), _blocks(b))


def _blocks(images: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    means = F.adaptive_avg_pool2d(images, (min(GRID, height), min(GRID, width)))
    return means - means.mean((-2, -1), keepdim=True)
