"""Images from sheets of 10 × 10 pictures."""

from __future__ import annotations

import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

PER_SIDE = 10
CIFAR_SPACE: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
"""Mean and deviation of CIFAR-10's training images."""


def sheets(path: Path, count: int | None = None) -> tuple[Tensor, Tensor]:
    """The first ``count`` images (N, C, H, W) in [0, 1] and their labels, from a zip of ``sheet_*`` pictures and ``labels.npy``."""
    with zipfile.ZipFile(path) as archive:
        labels = np.load(io.BytesIO(archive.read("labels.npy")), allow_pickle=False)[:count]
        names = sorted(n for n in archive.namelist() if n.startswith("sheet_"))[: -(-len(labels) // PER_SIDE**2)]
        with ThreadPoolExecutor() as pool:  # decoding takes most of the time and frees the interpreter
            found = list(pool.map(_pictures, [archive.read(name) for name in names]))
    images = torch.from_numpy(np.concatenate(found)[: len(labels)])
    if len(images) != len(labels):
        raise SystemExit(f"{path} holds {len(images)} images and {len(labels)} labels")
    return images.float() / 255, torch.from_numpy(labels.astype(np.int64)).flatten()


def _pictures(stored: bytes) -> np.ndarray:
    sheet = np.asarray(Image.open(io.BytesIO(stored)))
    side, channels = sheet.shape[0] // PER_SIDE, 1 if sheet.ndim == 2 else sheet.shape[2]
    squares = sheet.reshape(PER_SIDE, side, PER_SIDE, side, channels)
    return squares.transpose(0, 2, 4, 1, 3).reshape(-1, channels, side, side)
