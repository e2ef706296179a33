"""The patch size of a model that cuts its images into patches."""

from __future__ import annotations

from torch import nn

from leakgauge.families import find_roles

LEAST_SIDE = 4
"""Smaller patches are little more than colours: reordered, those of one image would fit any other."""
TILES = (4, 256)
"""The fewest and the most patches of an image that we put in order."""


def patch_side(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Side in pixels of the patches of an image of ``shape`` (C, H, W); None without patches, or if ordering them would say little."""
    name = find_roles(model).patch_embedding
    if name is None or len(shape) != 3:
        return None
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Conv2d) or layer.kernel_size != layer.stride or layer.padding not in ((0, 0), "valid"):
        return None
    side, other = layer.kernel_size
    if side != other or side < LEAST_SIDE or shape[1] % side or shape[2] % side:
        return None
    return side if TILES[0] <= (shape[1] // side) * (shape[2] // side) <= TILES[1] else None
