import numpy as np
import pytest

from leakgauge.data.arrays import PAIRS, read_npz
from leakgauge.errors import BadInput

GREY = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)


@pytest.fixture
def npz(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "d.npz", **arrays)
        return tmp_path / "d.npz"

    return save


@pytest.mark.parametrize(("x", "y"), PAIRS)
def test_every_pair_of_names(npz, x, y):
    images, labels = read_npz(npz(**{x: GREY, y: np.array([3, 7], np.uint8)}))
    assert images.shape == (2, 1, 4, 5)
    assert labels.tolist() == [3, 7]
    assert np.allclose(images[:, 0], GREY / 255)


@pytest.mark.parametrize("channels", [1, 3])
def test_layouts_agree(npz, channels):
    first = np.random.default_rng(0).random((2, channels, 4, 5))
    y = np.array([[0], [1]])
    a, labels = read_npz(npz(x=first, y=y))
    b, _ = read_npz(npz(x=np.moveaxis(first, 1, 3), y=y))
    assert a.shape == b.shape == (2, channels, 4, 5)
    assert a.equal(b)
    assert labels.tolist() == [0, 1]


def test_shape_decides_an_ambiguous_layout(npz):
    file = npz(x=np.zeros((2, 3, 4, 3)), y=np.zeros(2))
    assert read_npz(file)[0].shape == (2, 3, 4, 3)
    assert read_npz(file, shape=(3, 4, 3))[0].shape == (2, 3, 4, 3)
    assert read_npz(file, shape=(3, 3, 4))[0].shape == (2, 3, 3, 4)


def test_fits_the_shape(npz):
    file = npz(x=GREY, y=[0, 1])
    assert read_npz(file, shape=(3, 4, 5))[0].shape == (2, 3, 4, 5)
    assert read_npz(file, shape=(1, 8, 8), resize=True)[0].shape == (2, 1, 8, 8)
    with pytest.raises(BadInput, match=r"4 × 5 .* takes 8 × 8.*resize=True"):
        read_npz(file, shape=(1, 8, 8))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pixels": GREY, "y": [0, 1]}, "holds the arrays pixels, y; .*x and y"),
        ({"x": GREY}, "holds the arrays x;"),
        ({"x": GREY[0], "y": [0]}, "shape"),
        ({"x": np.zeros((0, 4, 4)), "y": []}, "shape"),
        ({"x": np.zeros((2, 5, 5, 5)), "y": [0, 1]}, "1 or 3 channels"),
        ({"x": GREY, "y": [0, 1, 2]}, "2 images but 3 labels"),
        ({"x": GREY, "y": np.eye(2)}, "one class number per image"),
        ({"x": GREY, "y": [0.5, 1]}, "integers from 0"),
        ({"x": GREY, "y": [-1, 1]}, "integers from 0"),
        ({"x": GREY, "y": ["cat", "dog"]}, "integers from 0"),
        ({"x": GREY / np.nan, "y": [0, 1]}, "not finite"),
        ({"x": GREY.astype(float), "y": [0, 1]}, "from 0 to 39; values from 0 to 1"),
        ({"x": GREY.astype(int) - 1, "y": [0, 1]}, "values from 0 to 255"),
        ({"x": (GREY > 20).astype(np.uint8), "y": [0, 1]}, "0 and 1 only.*bool or float"),
        ({"x": GREY.astype(complex), "y": [0, 1]}, "complex128"),
        ({"x": np.array([{}, {}]), "y": [0, 1]}, "plain .npz"),
    ],
)
def test_refusals(npz, arrays, message):
    with pytest.raises(BadInput, match=message):
        read_npz(npz(**arrays))


def test_refuses_what_is_no_npz(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        read_npz(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(BadInput, match=r"plain \.npz"):
        read_npz(tmp_path / "text.npz")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(BadInput, match=r"plain \.npz"):
        read_npz(tmp_path / "cut.npz")
    with (tmp_path / "one.npz").open("wb") as stream:
        np.save(stream, GREY)
    with pytest.raises(BadInput, match="single array"):
        read_npz(tmp_path / "one.npz")


def test_black_and_white_and_all_black_images_are_read_as_they_are(npz):
    assert read_npz(npz(x=GREY > 20, y=[0, 1]))[0].unique().tolist() == [0, 1]
    assert read_npz(npz(x=0 * GREY, y=[0, 1]))[0].unique().tolist() == [0]


def test_refuses_a_compressed_file_damaged_in_any_place(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", x=GREY, y=[0, 1])
    whole = (tmp_path / "whole.npz").read_bytes()
    readable = 0
    for at in range(len(whole)):
        damaged = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        (tmp_path / "damaged.npz").write_bytes(damaged)
        try:
            images, _ = read_npz(tmp_path / "damaged.npz")
        except BadInput:
            continue
        readable += 1
        assert np.allclose(images[:, 0], GREY / 255)  # the byte was one that says nothing of the arrays, such as a date
    assert readable < len(whole) / 2
