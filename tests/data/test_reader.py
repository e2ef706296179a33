import numpy as np
import pytest
from PIL import Image

from leakgauge.data import read
from leakgauge.errors import BadInput


def test_picks_the_reader_by_the_kind_of_path(tmp_path):
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 32, 32)), y=[0, 1])
    (tmp_path / "cifar").mkdir()
    (tmp_path / "cifar" / "test_batch.bin").write_bytes(bytes(3073 * 3))
    head = b"\x00\x00\x08"
    (tmp_path / "t-images-idx3-ubyte").write_bytes(head + b"\x03\0\0\0\x04\0\0\0\x20\0\0\0\x20" + bytes(4 * 32 * 32))
    (tmp_path / "t-labels-idx1-ubyte").write_bytes(head + b"\x01\0\0\0\x04" + bytes(4))
    expected = {".": 1, "a.png": 1, "a.npz": 2, "cifar": 3, "cifar/test_batch.bin": 3, "t-images-idx3-ubyte": 4}
    for name, count in expected.items():
        x, y = read(tmp_path / name, shape=(1, 28, 28), resize=True)
        assert x.shape == (count, 1, 28, 28), name
        assert len(y) == count
        with pytest.raises(BadInput, match="resize=True"):
            read(tmp_path / name, shape=(1, 28, 28))


def test_refusals(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        read(tmp_path / "nowhere")
    (tmp_path / "data.pkl").write_bytes(b"")
    with pytest.raises(BadInput, match="not of a known kind"):
        read(tmp_path / "data.pkl")
