"""How large data may become in memory, checked before it is unpacked: a file of kilobytes can ask for gigabytes."""

from __future__ import annotations

import gzip
import math
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from leakgauge.errors import BadInput

MOST_BYTES = 2 << 30
"""Of one array or file, unpacked."""


def refuse_size(size: int, source: object) -> None:
    """Refuses what would take more than ``MOST_BYTES``."""
    if size > MOST_BYTES:
        raise BadInput(
            f"{source} unpacks to {size / 2**30:.1f} GiB, more than the {MOST_BYTES >> 30} GiB that are read; give fewer samples"
        )


@contextmanager
def refusing_large_images() -> Iterator[None]:
    """Inside, Pillow refuses an image of more than 89 million pixels when it is opened, before it is decoded."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def unzipped(path: Path) -> bytes:
    """The content of a gzip file; no more than ``MOST_BYTES`` are ever unpacked."""
    with gzip.open(path) as stream:
        raw = stream.read(16)
        shape = np.frombuffer(raw[4 : 4 + 4 * raw[3]], ">u4") if raw[:3] == b"\x00\x00\x08" else ()
        refuse_size(math.prod(int(n) for n in shape), path)  # what an idx file says of itself
        raw += stream.read(MOST_BYTES - len(raw) + 1)
    refuse_size(len(raw), path)
    return raw


def check_archive(stream: BinaryIO, path: Path) -> None:
    """Refuses an .npz file with an array that is too large, or whose header says another size than it has."""
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            refuse_size(info.file_size, f"{info.filename} in {path}")
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, kind = read(member)
                said = math.prod(shape) * kind.itemsize
                if not kind.hasobject and said + member.tell() != info.file_size:
                    raise BadInput(
                        f"{info.filename} in {path} says shape {shape}, but holds {info.file_size - member.tell()} bytes; "
                        "the file is damaged"
                    )
