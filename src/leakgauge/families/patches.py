"""Into how large patches a model cuts its images, where it does."""

from __future__ import annotations

from torch import nn

from leakgauge.families import find_roles

LEAST_SIDE = 4
"""Smaller patches are little more than colours: in some order those of any image fit any other."""
TILES = (4, 256)
"""Fewest and most patches of an image that are put in order."""


def patch_side(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Pixels a side of the patches of images of ``shape`` (C, H, W); None where there are none, or where to order them would say little."""
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
