"""Reads a folder of images: flat, or with one subfolder per class."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile, ImageOps
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from leakgauge.data.dicom import DICOM, is_dicom, read_dicom
from leakgauge.data.fit import Shape, fit
from leakgauge.data.levels import (
    Given,
    Levels,
    Stored,
    at_levels,
    decide_levels,
    levels_of,
    stored_floats,
    stored_values,
    window_of,
)
from leakgauge.data.limits import refusing_large_images
from leakgauge.errors import BadInput

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
SUFFIXES = (*PICTURES, *DICOM)
BITS_PER_SAMPLE, MAX_SAMPLE_VALUE = 258, 281
"""Tags of a TIFF."""
UNREAD = (".gif", ".heic", ".heif", ".avif", ".jp2", ".ppm", ".pgm")
"""Image types that we cannot read. They are reported, because a silently half-read folder looks complete."""


def read_folder(path: str | Path, *, shape: Shape | None = None, resize: bool = False, window: str = "") -> Given:
    """The images of a folder. Subfolders are classes 0, 1, … in order of their sorted names; a flat folder has none.

    With ``shape`` = (channels, height, width) the images are converted to grey or RGB accordingly, and must have that size unless
    ``resize`` is set. Without ``shape`` they are RGB unless all of them are grey. ``window`` is as in :func:`read_files`.
    """
    path = Path(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist; give a folder of images")
    if not path.is_dir():
        raise BadInput(f"{path} is a file; give the folder with the images")
    files, labels = _list(path)
    images, levels = read_files(files, shape=shape, resize=resize, window=window)
    return Given(images, None if labels is None else torch.tensor(labels), levels)


def read_files(
    files: Sequence[Path], *, shape: Shape | None = None, resize: bool = False, window: str = ""
) -> tuple[Tensor, Levels]:
    """The given image files as one batch (N, C, H, W) in [0, 1]; see :func:`read_folder`.

    ``window`` ("0:4095") names the stored values that become 0 and 1. Without one, files of 8 bits range from 0 to 255; for deeper ones
    a depth is decided for all of them together, by what the files say about themselves or else by their largest value.
    """
    chosen = window_of(window)
    found: list[Stored] = []
    for file in files:
        one = _read(file, chosen)  # resized at once: what is stored may be many times as large
        found.append(replace(one, image=fit(one.image, shape=shape, resize=resize, source=str(file))))
    levels = decide_levels(files, found) if chosen is None else levels_of(window)
    images = [at_levels(one, levels) for one in found]
    channels = max(image.shape[1] for image in images)
    images = [image.expand(-1, channels, -1, -1) for image in images]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            a, b = (f"{h} × {w}" for h, w in (images[0].shape[2:], image.shape[2:]))
            raise BadInput(
                f"the images differ in size: {files[0]} is {a} and {file} is {b} pixels (height × width); "
                "resize them all to one size, or give a shape and resize=True (--resize)"
            )
    return torch.cat(images), levels


def _list(path: Path) -> tuple[list[Path], list[int] | None]:
    """The image files and their classes; None for images that lie in the folder itself."""
    flat = _images(path)
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    classes = [_images(folder) for folder in folders]
    if flat and any(classes):
        raise BadInput(f"{path} holds both images and folders of images; keep either images or one folder per class")
    if flat:
        return flat, None
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
    found = [file for file in shown if file.suffix.lower() in SUFFIXES or is_dicom(file)]
    for file in found:
        if file.is_symlink() and not file.exists():
            raise BadInput(f"{file} is a link to a missing file; fix or remove it")
    return [file for file in found if file.is_file()]


def _read(file: Path, window: tuple[float, float] | None) -> Stored:
    if is_dicom(file):
        return read_dicom(file, window)
    try:
        with refusing_large_images(), Image.open(file) as opened:
            tags = opened.tag_v2 if isinstance(opened, TiffImageFile) else {}
            if isinstance(opened, TiffImageFile) and opened.n_frames > 1:
                raise BadInput(f"{file} holds {opened.n_frames} pages; save each page as a file of its own")
            half = ";16" in _raw_mode(opened) and not opened.mode.startswith("I")  # Pillow drops 8 bits of each colour
            lower = _lower_bytes(file, opened) if half else None
            picture = ImageOps.exif_transpose(opened)
            deep = picture.mode.startswith("I") or picture.mode == "F"  # convert("L") would clip instead of scale
            if not deep:
                picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
            pixels = np.array(picture, dtype=np.float32)
            if lower is not None:
                pixels, half, deep = pixels * 256 + lower, False, True
    except BadInput:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadInput(f"{file} cannot be read as an image ({error}); replace or remove it") from error
    pixels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    if picture.mode == "F":
        return stored_floats(pixels, window, source=str(file))
    if half:
        return stored_values(pixels * 257, window, source=str(file), span=(0, 65535), halved=True)
    return stored_values(pixels, window, source=str(file), span=(0, 65535 if deep else 255), says=_says(tags))


def _lower_bytes(file: Path, opened: ImageFile.ImageFile) -> np.ndarray | None:
    """The lower 8 bits of colours of 16, (H, W, 3): what Pillow reads if the file's order of bytes is taken for the other one.

    None for layouts that Pillow knows in one order only (grey with transparency), or that are no RGB.
    """
    colours, _, order = _raw_mode(opened).partition(";16")
    other = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}.get(order)
    if colours not in ("RGB", "RGBA", "RGBX") or other is None:
        return None
    with Image.open(file) as again:
        again.tile = [tile._replace(args=_with_first(tile.args, f"{colours};16{other}")) for tile in again.tile]
        return np.array(ImageOps.exif_transpose(again), dtype=np.float32)[..., :3]


def _with_first(arguments: Any, first: str) -> Any:
    """The arguments of one of Pillow's decoders with another raw mode."""
    return (first, *arguments[1:]) if isinstance(arguments, tuple) else first


def _raw_mode(opened: ImageFile.ImageFile) -> str:
    """How the values are laid out in the file, as Pillow calls it."""
    arguments = opened.tile[0].args if opened.tile else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments)


def _says(tags: Mapping[int, Any]) -> tuple[float, float] | None:
    """Black and white by the tags of a TIFF. The largest value of 16 bits is what writers put where they do not know better."""
    bits, top = tags.get(BITS_PER_SAMPLE, (16,)), tags.get(MAX_SAMPLE_VALUE, (65535,))
    white = min(2 ** max(np.atleast_1d(bits)) - 1, max(np.atleast_1d(top)))
    return (0.0, float(white)) if white < 65535 else None
