"""Ridge regression from a neighbourhood of a feature map to the block of pixels under it: the same weights at every place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.ridge import FEWEST, PENALTIES, best_penalty

WIDEST = 7
"""Largest side of a neighbourhood."""
MOST_INPUTS = 900
"""Most numbers that a neighbourhood of more than one place may hold; time grows with their cube."""
MOST_CHANNELS = 2000
PLACES_PER_INPUT, MOST_PLACES = 12, 8_000
"""Places that are fitted: so many per number of a neighbourhood, and at most so many."""
AT_ONCE = 1 << 21
"""How many numbers of a feature map are in memory at once."""


@dataclass(frozen=True, eq=False)
class LocalRidge:
    """x̂ = W * z + b: ``weight`` (pixels of a block, C, k, k) is a convolution over the feature map, then blocks are put together.

    ``rows`` and ``columns`` are the places of the map that belong to the blocks of the image, each ``block`` pixels wide.
    ``held_out_mse`` is the error on images that were held out.
    """

    weight: Tensor
    bias: Tensor
    rows: Tensor
    columns: Tensor
    block: int
    penalty: float
    held_out_mse: float
    image_shape: tuple[int, ...]

    def __call__(self, features: Tensor) -> Tensor:
        """Reconstructed images for features (N, ...), not clipped."""
        _, height, width = self.image_shape
        batch = max(1, AT_ONCE // max(1, math.prod(features.shape[1:])))
        made = []
        for piece in features.split(batch):
            maps = as_map(piece).float()
            weight = self.weight.to(maps)
            blocks = F.conv2d(maps, weight, self.bias.to(maps), padding=weight.shape[-1] // 2)
            blocks = blocks[:, :, self.rows][:, :, :, self.columns]
            made.append(F.pixel_shuffle(blocks, self.block)[:, :, :height, :width])
        return torch.cat(made)


def as_map(features: Tensor) -> Tensor:
    """Features as maps (N, C, h, w): tokens (N, L, C) are put on their square, without a class token in front."""
    if features.ndim == 4:
        return features
    if features.ndim == 3:
        side = math.isqrt(features.shape[1])
        extra = features.shape[1] - side * side
        if side > 1 and extra <= 1:
            return features[:, extra:].transpose(1, 2).unflatten(2, (side, side))
    raise Inapplicable(f"features of shape {tuple(features.shape[1:])} have no places")


def fit_local_ridge(features: Tensor, images: Tensor, *, validation: float = 0.2, seed: int = 0) -> LocalRidge:
    """min_W Σ_{i,p} ‖x_i[p] - W·(z_i around p, 1)‖² + λ‖W‖² over images i and places p.

    Every place is a sample, so their number grows with the pixels: where :func:`leakgauge.measures.ridge.fit_ridge` has a few
    hundred samples for thousands of pixels, this has thousands for the pixels of one block. λ is chosen as there, on held-out
    images. Features without places are ``Inapplicable``.

    Ref: Hoerl and Kennard 1970, section 2 — ridge regression, here of patches
    """
    if len(features) != len(images) or images.ndim != 4:
        raise BadInput(f"local ridge needs one image per feature, got {len(images)} and {len(features)}")
    if len(features) < FEWEST:
        raise BadInput(f"local ridge needs at least {FEWEST} auxiliary images, got {len(features)}; give more")
    channels, *size = as_map(features[:1]).shape[1:]
    if channels > MOST_CHANNELS:
        raise Inapplicable(f"local ridge reads at most {MOST_CHANNELS} channels, got {channels}")
    side = max(k for k in range(1, WIDEST + 1, 2) if k == 1 or k * k * channels <= MOST_INPUTS)
    block = max(math.ceil(pixels / places) for pixels, places in zip(images.shape[2:], size, strict=True))
    rows, columns = (_places(pixels, block, places) for pixels, places in zip(images.shape[2:], size, strict=True))
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(features), generator=rng)
    held = max(1, round(validation * len(features)))
    wanted = min(MOST_PLACES, max(2000, PLACES_PER_INPUT * side * side * channels))
    own = _samples(features, images, order[held:], wanted, side, block, rows, columns, rng)
    other = _samples(features, images, order[:held], wanted // 4, side, block, rows, columns, rng)
    z_mean, x_mean = own[0].mean(0), own[1].mean(0)
    z, x = own[0] - z_mean, own[1] - x_mean
    values, vectors = torch.linalg.eigh(z.T @ z)
    values = values.clamp_min(0)
    turned = vectors.T @ (z.T @ x)
    penalty, error = best_penalty(values, turned, (other[0] - z_mean) @ vectors, other[1] - x_mean, PENALTIES)
    weight = vectors @ (turned / (values + penalty)[:, None])  # (C·k·k, pixels of a block)
    return LocalRidge(
        weight=weight.T.unflatten(1, (channels, side, side)).float(),
        bias=(x_mean - z_mean @ weight).float(),
        rows=rows,
        columns=columns,
        block=block,
        penalty=penalty,
        held_out_mse=error,
        image_shape=tuple(images.shape[1:]),
    )


def _places(pixels: int, block: int, places: int) -> Tensor:
    """For each block along one side of the image, the place of the feature map over it."""
    blocks = math.ceil(pixels / block)
    if places - blocks <= 2 * WIDEST:  # a padding shifts all places alike
        return torch.arange(blocks) + (places - blocks) // 2
    return ((torch.arange(blocks) + 0.5) * places / blocks).long().clamp_max(places - 1)


def _samples(
    features: Tensor,
    images: Tensor,
    chosen: Tensor,
    count: int,
    side: int,
    block: int,
    rows: Tensor,
    columns: Tensor,
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Neighbourhoods (M, C·k·k) and blocks of pixels (M, c·b·b) at places drawn over the ``chosen`` images, as float64."""
    blocks = len(rows) * len(columns)
    each = min(blocks, math.ceil(count / len(chosen)))
    taken = chosen[: math.ceil(count / each)]
    down, right = (-images.shape[2]) % block, (-images.shape[3]) % block
    around, pixels = [], []
    for index in taken.tolist():
        places = torch.randperm(blocks, generator=rng)[:each]
        i, j = places // len(columns), places % len(columns)
        map_ = F.pad(as_map(features[index : index + 1]).float(), [side // 2] * 4)[0].cpu()
        windows = map_.unfold(1, side, 1).unfold(2, side, 1)  # (C, h, w, k, k), a view
        around.append(windows[:, rows[i], columns[j]].transpose(0, 1).flatten(1))
        picture = F.pad(images[index : index + 1].float().cpu(), (0, right, 0, down), mode="replicate")
        pixels.append(F.pixel_unshuffle(picture, block)[0, :, i, j].T)
    return torch.cat(around).double(), torch.cat(pixels).double()
