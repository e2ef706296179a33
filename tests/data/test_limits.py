"""Files that unpack to far more than they hold are refused before they are unpacked, without taking the memory."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
import torch

from leakgauge.data.arrays import read_npz
from leakgauge.data.folder import read_files
from leakgauge.data.limits import MOST_BYTES
from leakgauge.data.standard import read_idx
from leakgauge.errors import BadInput
from leakgauge.integrations.tensor_files import read_tensors

SMALL = 50 << 20
"""Bytes that a refusal may take."""


@pytest.fixture(autouse=True)
def _takes_no_memory():
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < SMALL


def _png(path, side):
    """A PNG that says it has side × side grey pixels, with the data of one row."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    parts = [chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(bytes(side + 1))), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


@pytest.mark.parametrize("side", [13_000, 50_000])
def test_an_image_that_says_it_is_huge(tmp_path, recwarn, side):
    with pytest.raises(BadInput, match=r"cannot be read as an image .*pixels"):
        read_files([_png(tmp_path / "bomb.png", side)])
    assert not recwarn.list


def _idx(shape):
    return b"\x00\x00\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def test_an_idx_file_that_says_it_is_huge(tmp_path):
    path = tmp_path / "bomb-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(_idx((4_000_000, 28, 28))))
    with pytest.raises(BadInput, match=r"unpacks to 2\.9 GiB, more than the 2 GiB"):
        read_idx(path)


def test_an_idx_file_with_sizes_that_do_not_fit_64_bits(tmp_path):
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(_idx((2**31, 2**31, 2**31)))
    with pytest.raises(BadInput, match="holds 0 values"):
        read_idx(path)


def _forged(path, shape, content=b"\x00" * 64):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + content)
        archive.writestr("y.npy", b"")
    return path


def test_an_array_whose_header_is_forged(tmp_path):
    with pytest.raises(BadInput, match=r"x.npy in .* says shape \(1000000000000,\), but holds 64 bytes"):
        read_npz(_forged(tmp_path / "forged.npz", (10**12,)))


def test_an_array_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("leakgauge.data.limits.MOST_BYTES", 1 << 20)
    with pytest.raises(BadInput, match=r"x.npy in .* unpacks to"):
        read_npz(_forged(tmp_path / "bomb.npz", (2 << 20,), bytes(2 << 20)))
    assert MOST_BYTES == 2 << 30


def test_a_text_that_is_called_npz(tmp_path):
    (tmp_path / "text.npz").write_text("no array")
    with pytest.raises(
        BadInput, match=r"text.npz cannot be read as a plain .npz file \(it holds Python objects, or is no"
    ):
        read_npz(tmp_path / "text.npz")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (lambda: torch.zeros(3, device="meta"), "is a meta tensor, which has a shape and no values"),
        (lambda: torch.sparse_coo_tensor([[0], [0]], [1.0], (10**6, 10**6)), "takes 3725 GiB when it is written out"),
        (lambda: torch.zeros(1).expand(10**12), "takes 3725 GiB when it is written out"),
    ],
)
def test_updates_that_would_fill_the_memory(tmp_path, value, sentence):
    torch.save({"w": value()}, tmp_path / "update.pt")
    with pytest.raises(BadInput, match=sentence):
        read_tensors(tmp_path / "update.pt")


def test_a_numpy_file_is_no_update(tmp_path):
    np.savez(tmp_path / "delta.npz", w=np.zeros(3))
    with pytest.raises(BadInput, match="is a NumPy file; save the tensors by name with safetensors"):
        read_tensors(tmp_path / "delta.npz")
