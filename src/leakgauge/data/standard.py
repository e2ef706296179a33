"""Readers of the standard datasets' own files: MNIST-style idx pairs and the binary version of CIFAR-10.

Only formats with plain numbers are read. The Python version of CIFAR consists of pickles, which can run code when opened; it is
refused on purpose.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakgauge.data.limits import refuse_size, unzipped
from leakgauge.errors import BadInput

_CIFAR_RECORD = 1 + 3 * 32 * 32


def read_idx(path: str | Path) -> Tensor:
    """One idx file of unsigned bytes (plain or gzip), as stored: the format of MNIST and Fashion-MNIST."""
    path = Path(path)
    raw = _bytes(path)
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise BadInput(f"{path} is not an idx file of unsigned bytes; give a file such as train-images-idx3-ubyte.gz")
    rank = raw[3]
    header = 4 + 4 * rank
    sizes = raw[4:header] if len(raw) >= header else b""
    shape = tuple(int(n) for n in np.frombuffer(sizes, ">u4"))
    expected = math.prod(shape)
    if len(shape) != rank or len(raw) != header + expected:
        raise BadInput(
            f"{path} says shape {shape} but holds {max(0, len(raw) - header)} values; "
            "the file is incomplete, download it again"
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy())


def read_mnist(images: str | Path, labels: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Images (N, 1, H, W) in [0, 1] and labels from a pair of idx files.

    Without ``labels`` the partner file is looked up next to the images, by the datasets' own naming.
    """
    images = Path(images)
    partner = Path(labels) if labels is not None else _partner(images)
    x, y = read_idx(images), read_idx(partner)
    if x.dim() != 3:
        raise BadInput(f"{images} has rank {x.dim()}; rank 3 is expected: (count, height, width) of the images")
    if x.numel() == 0:
        raise BadInput(f"{images} holds no image (shape {tuple(x.shape)}); give a file with images")
    if y.dim() != 1 or len(y) != len(x):
        raise BadInput(f"{partner} holds labels of shape {tuple(y.shape)}; {len(x)} labels for {images} are expected")
    return x[:, None].float() / 255, y.long()


def read_cifar(path: str | Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) in [0, 1] and labels from one CIFAR-10 binary file, or from all in a folder.

    In a folder, ``data_batch_*.bin`` are read in order, or ``test_batch.bin`` if there is no training file.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("data_batch_*.bin")) or sorted(path.glob("test_batch.bin"))
        if not files:
            raise BadInput(f"{path} holds no data_batch_*.bin; give the binary version of CIFAR-10, not the pickles")
    images, labels = [], []
    for file in files:
        raw = _bytes(file)
        if not raw or len(raw) % _CIFAR_RECORD:
            raise BadInput(
                f"{file} has {len(raw)} bytes, which is not a multiple of {_CIFAR_RECORD}; "
                "a file of the binary version of CIFAR-10 is expected"
            )
        rows = torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(-1, _CIFAR_RECORD).copy())
        if int(rows[:, 0].max()) > 9:
            raise BadInput(f"{file} holds labels above 9; a file of the binary version of CIFAR-10 is expected")
        labels.append(rows[:, 0].long())
        images.append(rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255)
    return torch.cat(images), torch.cat(labels)


def _partner(images: Path) -> Path:
    """``train-images-idx3-ubyte.gz`` -> ``train-labels-idx1-ubyte.gz``, compressed or not."""
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    plain = images.with_name(name.removesuffix(".gz"))
    candidates = [p for p in (images.with_name(name), plain, plain.with_name(plain.name + ".gz")) if p != images]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise BadInput(f"no labels file was found next to {images}; put {name} there or give the labels file")


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise BadInput(f"{path} does not exist or is not a file; give the path of the dataset's own file")
    refuse_size(path.stat().st_size, path)
    with path.open("rb") as stream:
        if stream.read(2) != b"\x1f\x8b":
            return path.read_bytes()
    try:
        return unzipped(path)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be decompressed ({error}); the file is damaged, download it again") from error
