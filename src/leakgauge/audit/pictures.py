"""Strips of images for the report: a batch side by side, one pixel apart, at native resolution."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from leakgauge.audit.files import write_whole

FOLDER = "pictures"


def save_strip(folder: Path, name: str, images: Tensor) -> str:
    """Writes images (N, C, H, W) in [0, 1] as one PNG, whole or not at all; returns its path relative to ``folder``."""
    (folder / FOLDER).mkdir(exist_ok=True)
    write_whole(folder / FOLDER / f"{name}.png", strip(images))
    return f"{FOLDER}/{name}.png"


def strip(images: Tensor) -> bytes:
    """Images (N, C, H, W) in [0, 1] as one PNG."""
    pixels = (images.detach().cpu().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    count, height, width, channels = pixels.shape
    sheet = np.full((height, count * (width + 1) - 1, channels), 255, dtype=np.uint8)
    for i, picture in enumerate(pixels):
        sheet[:, i * (width + 1) : i * (width + 1) + width] = picture
    buffer = io.BytesIO()
    Image.fromarray(sheet[..., 0] if channels == 1 else sheet[..., :3]).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
