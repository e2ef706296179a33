"""Fits images to the shape that a model takes, or says why that is not possible."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput

Shape = tuple[int, ...]
"""(channels, height, width) of the model's input, as ``Pixels.shape``."""

_LUMA = (0.299, 0.587, 0.114)


def fit(images: Tensor, *, shape: Shape | None, resize: bool, source: str) -> Tensor:
    """Images (N, C, H, W) in [0, 1] as (N, *shape); ``source`` is their name in error messages.

    Converts between grey and RGB. Changes the size only with ``resize``, because silent resampling would change what an attack is
    measured against.
    """
    if shape is None:
        return images
    if len(shape) != 3:
        raise BadInput(f"images need a shape (channels, height, width), got {shape}")
    channels, height, width = shape
    if images.shape[1] != channels:
        images = _recolour(images, channels, source)
    if images.shape[2:] != (height, width):
        if not resize:
            raise BadInput(
                f"{source} is {images.shape[2]} × {images.shape[3]} pixels (height × width) but the model takes "
                f"{height} × {width}; resize the images, or allow it with resize=True (--resize)"
            )
        images = F.interpolate(images, (height, width), mode="bicubic", antialias=True).clamp(0, 1)
    return images


def _recolour(images: Tensor, channels: int, source: str) -> Tensor:
    if (images.shape[1], channels) == (1, 3):
        return images.expand(-1, 3, -1, -1).contiguous()
    if (images.shape[1], channels) == (3, 1):
        return (images * images.new_tensor(_LUMA).view(3, 1, 1)).sum(1, keepdim=True)
    raise BadInput(f"{source} has {images.shape[1]} channels but the model takes {channels}; give grey or RGB images")
