import gzip
import struct

import numpy as np
import pytest

from leakgauge.data.standard import read_cifar, read_idx, read_mnist
from leakgauge.errors import BadInput

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def cifar(count, *, label=9):
    return b"".join(bytes([label]) + bytes([i] * 1024 + [0] * 1024 + [255] * 1024) for i in range(count))


@pytest.mark.parametrize("images", ["t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz"])
@pytest.mark.parametrize("labels", ["t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz"])
def test_mnist_pair_is_found_by_name(tmp_path, images, labels):
    for name, array in ((images, IMAGES), (labels, np.array([4, 2], np.uint8))):
        (tmp_path / name).write_bytes(gzip.compress(idx(array)) if name.endswith("gz") else idx(array))
    x, y = read_mnist(tmp_path / images)
    assert x.shape == (2, 1, 3, 4)
    assert np.allclose(x[:, 0], IMAGES / 255)
    assert y.tolist() == [4, 2]


def test_mnist_refusals(tmp_path):
    x, y = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    with pytest.raises(BadInput, match="no labels file"):
        read_mnist(x)
    y.write_bytes(idx(np.zeros(3, np.uint8)))
    with pytest.raises(BadInput, match="does not exist"):
        read_mnist(x)
    x.write_bytes(idx(IMAGES))
    with pytest.raises(BadInput, match="2 labels"):
        read_mnist(x)
    with pytest.raises(BadInput, match="rank 1"):
        read_mnist(y, y)
    for nothing in (IMAGES[:0], IMAGES[:, :0]):
        x.write_bytes(idx(nothing))
        with pytest.raises(BadInput, match="holds no image"):
            read_mnist(x)
    x.write_bytes(idx(IMAGES)[:-1])
    with pytest.raises(BadInput, match="incomplete"):
        read_idx(x)
    for length in range(4, 16):  # within the header
        x.write_bytes(idx(IMAGES)[:length])
        with pytest.raises(BadInput, match="incomplete"):
            read_idx(x)
    x.write_bytes(b"hello")
    with pytest.raises(BadInput, match="not an idx file"):
        read_idx(x)
    x.write_bytes(gzip.compress(idx(IMAGES))[:-9])
    with pytest.raises(BadInput, match="damaged"):
        read_idx(x)


def test_cifar_file_and_folder(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(cifar(1))
    assert read_cifar(tmp_path)[0].shape == (1, 3, 32, 32)
    (tmp_path / "data_batch_1.bin").write_bytes(cifar(3))
    (tmp_path / "data_batch_2.bin").write_bytes(cifar(2, label=1))
    x, y = read_cifar(tmp_path)
    assert x.shape == (5, 3, 32, 32)
    assert y.tolist() == [9, 9, 9, 1, 1]
    assert x[2].mean((1, 2)).tolist() == pytest.approx([2 / 255, 0, 1])


def test_cifar_refusals(tmp_path):
    with pytest.raises(BadInput, match="holds no data_batch"):
        read_cifar(tmp_path)
    file = tmp_path / "data_batch_1.bin"
    for content, message in ((cifar(1)[:-1], "multiple of 3073"), (b"", "0 bytes"), (cifar(1, label=10), "above 9")):
        file.write_bytes(content)
        with pytest.raises(BadInput, match=message):
            read_cifar(file)
