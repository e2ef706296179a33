"""Images from sheets of 10 × 10 pictures."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def sheets(path: Path, count: int | None = None) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) in [0, 1] and labels from a zip of ``sheet_*`` pictures, row by row, and ``labels.npy``."""
    found: list[np.ndarray] = []
    with zipfile.ZipFile(path) as archive:
        labels = np.load(io.BytesIO(archive.read("labels.npy")), allow_pickle=False)[:count]
        names = sorted(n for n in archive.namelist() if n.startswith("sheet_"))[: -(-len(labels) // 100)]
        for name in names:
            sheet = np.asarray(Image.open(io.BytesIO(archive.read(name))))
            sheet = sheet[:, :, None] if sheet.ndim == 2 else sheet
            side = sheet.shape[0] // 10
            found.append(sheet.reshape(10, side, 10, side, -1).swapaxes(1, 2).reshape(100, side, side, -1))
    images = torch.from_numpy(np.concatenate(found)[: len(labels)]).permute(0, 3, 1, 2).float() / 255
    return images, torch.from_numpy(labels.astype(np.int64)).flatten()
