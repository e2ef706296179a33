"""Reads a folder of images: flat, or with one subfolder per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from leakgauge.data.fit import Shape, fit
from leakgauge.errors import BadInput

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
UNREAD = (".gif", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".ppm", ".pgm")
"""Image types that we cannot read. They are reported, because a silently half-read folder looks complete."""


def read_folder(path: str | Path, *, shape: Shape | None = None, resize: bool = False) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) in [0, 1] and labels.

    In a flat folder all labels are 0; subfolders are classes 0, 1, … in order of their sorted names. With ``shape`` = (channels,
    height, width) the images are converted to grey or RGB accordingly, and must have that size unless ``resize`` is set.
    Without ``shape`` they are RGB unless all of them are grey.
    """
    path = Path(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist; give a folder of images")
    if not path.is_dir():
        raise BadInput(f"{path} is a file; give the folder with the images")
    files, labels = _list(path)
    return read_files(files, shape=shape, resize=resize), torch.tensor(labels)


def read_files(files: Sequence[Path], *, shape: Shape | None = None, resize: bool = False) -> Tensor:
    """The given image files as one batch (N, C, H, W) in [0, 1]; see :func:`read_folder`."""
    images = [fit(_read(file), shape=shape, resize=resize, source=str(file)) for file in files]
    channels = max(image.shape[1] for image in images)
    images = [image.expand(-1, channels, -1, -1) for image in images]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            a, b = (f"{h} × {w}" for h, w in (images[0].shape[2:], image.shape[2:]))
            raise BadInput(
                f"the images differ in size: {files[0]} is {a} and {file} is {b} pixels (height × width); "
                "resize them all to one size, or give a shape and resize=True (--resize)"
            )
    return torch.cat(images)


def is_flat(path: str | Path) -> bool:
    """Whether a folder holds its images directly, so their classes are unknown."""
    return bool(_images(Path(path)))


def _list(path: Path) -> tuple[list[Path], list[int]]:
    flat = _images(path)
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    classes = [_images(folder) for folder in folders]
    if flat and any(classes):
        raise BadInput(f"{path} holds both images and folders of images; keep either images or one folder per class")
    if flat:
        return flat, [0] * len(flat)
    if not any(classes):
        raise BadInput(f"{path} holds no images; put {', '.join(SUFFIXES)} files there or in one subfolder per class")
    for folder, found in zip(folders, classes, strict=True):
        if not found:
            raise BadInput(f"the class folder {folder} holds no images; fill it or remove it")
    return [p for found in classes for p in found], [label for label, found in enumerate(classes) for _ in found]


def _images(folder: Path) -> list[Path]:
    shown = sorted(p for p in folder.iterdir() if not p.name.startswith(".") and not p.is_dir())
    for file in shown:
        if file.suffix.lower() in UNREAD:
            raise BadInput(
                f"{file} is an image of an unsupported type; convert it to one of {', '.join(SUFFIXES)}, or remove it"
            )
    found = [file for file in shown if file.suffix.lower() in SUFFIXES]
    for file in found:
        if file.is_symlink() and not file.exists():
            raise BadInput(f"{file} is a link to a missing file; fix or remove it")
    return [file for file in found if file.is_file()]


def _read(file: Path) -> Tensor:
    try:
        with Image.open(file) as opened:
            picture = ImageOps.exif_transpose(opened)
            deep = picture.mode.startswith("I")  # 16 bits per pixel; convert("L") would clip instead of scale
            if not deep:
                picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
            pixels = np.array(picture, dtype=np.float32)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"{file} cannot be read as an image ({error}); replace or remove it") from error
    image = torch.from_numpy(pixels / (65535 if deep else 255)).clamp(0, 1)
    return image[None, None] if image.dim() == 2 else image.permute(2, 0, 1)[None]
