"""Files of more than 8 bits are read at their real depth, one for the whole data set."""

import struct

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.data.arrays import read_npz
from leakgauge.data.folder import read_folder
from leakgauge.data.levels import Levels
from leakgauge.data.reader import read, read_given
from leakgauge.errors import BadInput

X_RAY = np.linspace(0, 4000, 48).reshape(6, 8).astype(np.uint16)


def save(path, values, **options):
    Image.fromarray(values).save(path, **options)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_twelve_bits_in_sixteen_are_not_black(tmp_path, suffix):
    save(tmp_path / f"a.{suffix}", X_RAY)
    save(tmp_path / f"b.{suffix}", X_RAY // 5)  # dark, but of the same scanner
    given = read_folder(tmp_path)
    assert given.levels == Levels(0, 4095, "values")
    assert torch.allclose(given.images[:, 0].double(), torch.from_numpy(np.stack([X_RAY, X_RAY // 5]) / 4095))


@pytest.mark.parametrize(("top", "white"), [(200, 255), (900, 1023), (4095, 4095), (4096, 16383), (16384, 65535)])
def test_the_smallest_depth_that_holds_the_data_set(tmp_path, top, white):
    save(tmp_path / "a.png", np.array([[0, top]], np.uint16))
    save(tmp_path / "b.png", np.array([[0, 1]], np.uint16))
    assert read_given(tmp_path).levels.white == white
    assert read(tmp_path)[0].max() == pytest.approx(top / white)


def test_a_tiff_says_its_depth(tmp_path):
    dark = X_RAY // 8  # the values alone would say 10 bits
    save(tmp_path / "a.tif", dark, tiffinfo={281: 4095})
    assert read_folder(tmp_path).levels == Levels(0, 4095, "file")
    save(tmp_path / "b.tif", dark, tiffinfo={281: 65535})  # what writers put where they do not know better
    assert read_folder(tmp_path).levels == Levels(0, 1023, "values")


def test_packed_twelve_bits(tmp_path):
    """A TIFF of 12 bits per sample, two of them in three bytes, written by hand."""
    values = [0, 300, 17, 511]  # as bits: the values alone would say 10
    packed = bytes(
        b for a, c in zip(values[::2], values[1::2], strict=True) for b in (a >> 4, (a & 15) << 4 | c >> 8, c & 255)
    )
    tags = [(256, 4), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, len(packed))]
    table = b"".join(struct.pack("<HHLL", tag, 4, 1, value) for tag, value in tags)
    start = 8 + len(packed)
    raw = b"II*\0" + struct.pack("<L", start) + packed + struct.pack("<H", len(tags)) + table + bytes(4)
    (tmp_path / "packed.tif").write_bytes(raw)
    given = read_given(tmp_path / "packed.tif")
    assert given.levels == Levels(0, 4095, "file")
    assert torch.allclose(given.images.flatten(), torch.tensor(values) / 4095)


def test_a_window_wins(tmp_path):
    save(tmp_path / "a.png", X_RAY)
    given = read_folder(tmp_path, window="1000:3000")
    assert given.levels == Levels(1000, 3000, "window")
    expected = torch.from_numpy(((X_RAY.astype(float) - 1000) / 2000).clip(0, 1))
    assert torch.allclose(given.images[0, 0].double(), expected, atol=1e-6)
    small = read_folder(tmp_path, shape=(3, 3, 4), resize=True, window="0:4095").images
    assert torch.allclose(small, read_folder(tmp_path, shape=(3, 3, 4), resize=True).images, atol=1e-6)


@pytest.mark.parametrize("text", ["4095", "0:x", "5:5", "9:1", "0:inf", "nan:4"])
def test_a_window_that_is_none(tmp_path, text):
    save(tmp_path / "a.png", X_RAY)
    with pytest.raises(BadInput, match="BLACK:WHITE"):
        read_folder(tmp_path, window=text)


def test_eight_bits_stay_as_they_are(tmp_path):
    save(tmp_path / "a.png", np.array([[0, 20]], np.uint8))  # dark, and bytes all the same
    save(tmp_path / "b.tiff", np.array([[0, 40]], np.uint8))
    given = read_folder(tmp_path)
    assert given.levels == Levels()
    assert given.images.flatten().tolist() == pytest.approx([0, 20 / 255, 0, 40 / 255])


def test_two_depths_need_a_window(tmp_path):
    save(tmp_path / "a.png", X_RAY)
    save(tmp_path / "b.png", X_RAY.clip(0, 255).astype(np.uint8))
    with pytest.raises(BadInput, match=r"b\.png has 8 bits .*a\.png has more.*--window 0:4095"):
        read_folder(tmp_path)
    assert read_folder(tmp_path, window="0:4095").images[1].max() == pytest.approx(255 / 4095)


def test_signed_values_and_floats(tmp_path):
    save(tmp_path / "ct.tif", np.array([[-1000, 0, 1000]], np.int32))
    assert read_given(tmp_path / "ct.tif").levels == Levels(-1000, 1000, "values")
    assert read(tmp_path / "ct.tif", window="-500:500")[0].flatten().tolist() == [0, 0.5, 1]
    save(tmp_path / "f.tif", np.array([[0, 0.25, 1]], np.float32))
    assert read(tmp_path / "f.tif")[0].flatten().tolist() == [0, 0.25, 1]
    save(tmp_path / "g.tif", np.array([[0, 3.5]], np.float32))
    with pytest.raises(BadInput, match=r"float32 images with values from 0 to 3\.5; values from 0 to 1"):
        read(tmp_path / "g.tif")
    assert read(tmp_path / "g.tif", window="0:7")[0].flatten().tolist() == [0, 0.5]


def sixteen_bit_colour(path, values, *, kind=2):
    """A PNG of 16 bits per value, (H, W, C), which Pillow reads and does not write; ``kind`` is the colour type of its header."""
    import zlib

    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name, content):
        return struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))

    head = struct.pack(">LLBBBBB", width, height, 16, kind, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def colours(top, channels=3):
    values = np.random.default_rng(0).integers(0, top + 1, (5, 7, channels))
    values[0, 0] = top
    return values


@pytest.mark.parametrize("top", [1023, 4095, 65535])
def test_colours_of_more_than_eight_bits_are_read_at_their_depth(tmp_path, top):
    """Compared with the values that were written; tifffile is an independent writer."""
    import tifffile

    values = colours(top)
    want = torch.from_numpy(values / top).permute(2, 0, 1).float()
    sixteen_bit_colour(tmp_path / "a.png", values)
    sixteen_bit_colour(tmp_path / "b.png", np.concatenate([values, np.full((5, 7, 1), 65535)], 2), kind=6)
    for name, order, packed in (("c", "<", None), ("d", ">", None), ("e", "<", "zlib"), ("f", ">", "zlib")):
        tifffile.imwrite(
            tmp_path / f"{name}.tif", values.astype(np.uint16), byteorder=order, compression=packed, photometric="rgb"
        )
    for file in sorted(tmp_path.iterdir()):
        found = read_given(file)
        assert found.levels == Levels(0, top, "values"), file
        torch.testing.assert_close(found.images[0], want, atol=1e-6, rtol=0, msg=file.name)
    assert read(tmp_path / "a.png", window="0:2000")[0].max() == min(1, top / 2000)


def test_grey_with_transparency_is_refused_where_half_of_its_bits_would_be_lost(tmp_path):
    sixteen_bit_colour(tmp_path / "a.png", colours(65535, 2), kind=4)
    assert read(tmp_path / "a.png")[0].max() == 1
    sixteen_bit_colour(tmp_path / "b.png", colours(4095, 2), kind=4)
    with pytest.raises(BadInput, match=r"b\.png stores .* in 16 bits.*upper 8.*4095 of 65535"):
        read(tmp_path / "b.png")


def test_pages_are_refused(tmp_path):
    pages = [Image.fromarray(X_RAY) for _ in range(3)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(BadInput, match=r"a\.tif holds 3 pages"):
        read_folder(tmp_path)


def test_arrays_take_a_window(tmp_path):
    np.savez(tmp_path / "d.npz", x=X_RAY[None], y=[0])
    with pytest.raises(BadInput, match=r"uint16 images with values from 0 to 4000.*--window 0:4095"):
        read_npz(tmp_path / "d.npz")
    images, _ = read_npz(tmp_path / "d.npz", window="0:4000")
    assert images.max() == 1
    assert read_given(tmp_path / "d.npz", window="0:4000").levels == Levels(0, 4000, "window")
