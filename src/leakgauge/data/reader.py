"""One entry point for the user's own data: the kind of path decides which reader is used."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from leakgauge.data.arrays import TargetKind, read_npz
from leakgauge.data.dicom import is_dicom
from leakgauge.data.fit import Shape, fit
from leakgauge.data.folder import SUFFIXES, read_files, read_folder
from leakgauge.data.levels import Given, levels_of
from leakgauge.data.standard import read_cifar, read_mnist
from leakgauge.errors import BadInput


def is_image_folder(path: str | Path) -> bool:
    """Whether a path is read as a folder of images: any folder except CIFAR-10's binary files."""
    return Path(path).is_dir() and not any(Path(path).glob("*_batch*.bin"))


def read(
    path: str | Path, *, shape: Shape | None = None, resize: bool = False, window: str = ""
) -> tuple[Tensor, Tensor]:
    """Images (N, C, H, W) in [0, 1] and labels from a folder, an image, an npz, an idx or a CIFAR-10 binary file.

    With ``shape`` = (channels, height, width) the images are converted to grey or RGB, and their size must match unless
    ``resize`` is set. ``window`` ("0:4095") names the stored values of black and white; without one, images of more than 8 bits are
    read at a depth that is decided for all of them together. Images without classes get the label 0.
    """
    given = read_given(path, shape=shape, resize=resize, window=window)
    return given.images, torch.zeros(len(given.images), dtype=torch.long) if given.labels is None else given.labels


def read_given(
    path: str | Path,
    *,
    shape: Shape | None = None,
    resize: bool = False,
    window: str = "",
    targets: TargetKind = "classes",
) -> Given:
    """As :func:`read`, with what is known about the data: whether it has classes, and which values are black and white. ``targets``
    says what they may be besides class numbers.
    """
    path = Path(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist; give a folder of images, a .npz file or a dataset's own file")
    if is_image_folder(path):
        return read_folder(path, shape=shape, resize=resize, window=window)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        images, labels = read_npz(path, shape=shape, resize=resize, window=window, targets=targets)
        return Given(images, labels, levels_of(window))
    if suffix in SUFFIXES or is_dicom(path):
        images, levels = read_files([path], shape=shape, resize=resize, window=window)
        return Given(images, None, levels)
    if path.is_dir() or suffix == ".bin":
        images, labels = read_cifar(path)
    elif "idx3-ubyte" in path.name:
        images, labels = read_mnist(path)
    else:
        raise BadInput(
            f"{path} is not of a known kind; give a folder of images, an image ({', '.join(SUFFIXES)}), a .npz file, "
            "an idx3-ubyte file or a CIFAR-10 .bin file"
        )
    if window:
        raise BadInput(f"{path} holds bytes from 0 to 255, so it needs no window; leave it out")
    return Given(fit(images, shape=shape, resize=resize, source=str(path)), labels)
