"""Real samples that ship with the package, so a first try works without a download.

Sources and licences are listed in ``embedded/LICENSES.md``; the files were made by ``tools/make_embedded_data.py``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leakgauge.errors import BadInput

MEAN = (0.2860,)
"""Mean of Fashion-MNIST's training pixels, for ``Pixels(mean=MEAN)``."""
STD = (0.3530,)
"""Standard deviation of Fashion-MNIST's training pixels, for ``Pixels(std=STD)``."""

PHOTOGRAPHS = ("astronaut", "cat", "coffee", "rocket", "retina", "camera", "hubble_deep_field", "gravel")
"""Names of the embedded photographs, in the order :func:`photographs` returns them."""

_SIDE = 28
_PHOTO_SIDE = 224


def fashion(split: Literal["train", "test"] = "train") -> tuple[Tensor, Tensor]:
    """Images (N, 1, 28, 28) in [0, 1] and labels: 3000 of Fashion-MNIST's training or 1000 of its test images.

    The classes are balanced and alternate: image i has class i mod 10, so any ten consecutive images show all classes.
    """
    if split not in ("train", "test"):
        raise BadInput(f"fashion has the splits 'train' and 'test', got {split!r}")
    pixels, labels = _fashion(split)
    return torch.from_numpy(pixels).float()[:, None] / 255, torch.from_numpy(labels).long()


def photographs(side: int = _PHOTO_SIDE) -> Tensor:
    """The embedded photographs (N, 3, side, side) in [0, 1], resampled from 224 × 224; see ``PHOTOGRAPHS``."""
    if side < 1:
        raise BadInput(f"photographs needs a positive side, got {side}")
    size = (side, side)
    pictures = [np.asarray(p if p.size == size else p.resize(size, Image.Resampling.LANCZOS)) for p in _photographs()]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


@cache
def _fashion(split: str) -> tuple[np.ndarray, np.ndarray]:
    folder = files("leakgauge.data") / "embedded"
    labels = np.array([int(digit) for digit in (folder / f"fashion-{split}.txt").read_text("ascii") if digit.isdigit()])
    with (folder / f"fashion-{split}.png").open("rb") as stream:
        sheet = np.asarray(Image.open(stream))
    rows, columns = (n // _SIDE for n in sheet.shape)
    tiles = sheet.reshape(rows, _SIDE, columns, _SIDE).swapaxes(1, 2).reshape(-1, _SIDE, _SIDE)
    return np.ascontiguousarray(tiles[: len(labels)]), labels


@cache
def _photographs() -> tuple[Image.Image, ...]:
    pictures = []
    for name in PHOTOGRAPHS:
        with (files("leakgauge.data") / "embedded" / f"photo-{name}.webp").open("rb") as stream:
            pictures.append(Image.open(stream).convert("RGB"))
    return tuple(pictures)
