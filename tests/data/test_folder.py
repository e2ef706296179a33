import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.data.folder import read_folder
from leakgauge.errors import BadInput


def picture(path, *, size=(8, 6), mode="RGB", value=128):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode != "RGB" else (value, 0, 255)).save(path)


def test_flat_folder_of_all_kinds(tmp_path):
    for name in ("a.png", "b.JPG", "c.jpeg", "d.webp", "e.bmp"):
        picture(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not an image")
    given = read_folder(tmp_path)
    x, y = given.images, given.labels
    assert x.shape == (5, 3, 6, 8)
    assert y is None
    assert torch.allclose(x[0, :, 0, 0], torch.tensor([128 / 255, 0, 1]))
    assert (x[0] - x).abs().max() < 0.05


def test_class_folders_are_numbered_by_sorted_name(tmp_path):
    picture(tmp_path / "shoe" / "1.png", mode="L", value=255)
    picture(tmp_path / "bag" / "1.png", mode="L", value=0)
    picture(tmp_path / "bag" / "2.png", mode="L", value=0)
    given = read_folder(tmp_path)
    x, y = given.images, given.labels
    assert x.shape == (3, 1, 6, 8)
    assert y.tolist() == [0, 0, 1]
    assert x.mean((1, 2, 3)).tolist() == [0, 0, 1]


def test_shape_chooses_grey_or_rgb(tmp_path):
    picture(tmp_path / "a.png", mode="L", value=51)
    picture(tmp_path / "b.png")
    assert read_folder(tmp_path).images.shape == (2, 3, 6, 8)
    assert read_folder(tmp_path, shape=(1, 6, 8)).images.shape == (2, 1, 6, 8)
    assert read_folder(tmp_path, shape=(3, 6, 8)).images[0].unique().tolist() == pytest.approx([0.2])
    assert read_folder(tmp_path, shape=(3, 4, 4), resize=True).images.shape == (2, 3, 4, 4)


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    Image.fromarray(np.full((4, 4), 32768, np.uint16)).save(tmp_path / "deep.png")
    assert read_folder(tmp_path).images.unique().item() == pytest.approx(0.5, abs=1e-4)


def test_mixed_sizes_name_two_files_unless_resized(tmp_path):
    picture(tmp_path / "a.png", size=(8, 6))
    picture(tmp_path / "b.png", size=(9, 6))
    with pytest.raises(BadInput, match=r"a\.png is 6 × 8 and .*b\.png is 6 × 9.*resize"):
        read_folder(tmp_path)
    with pytest.raises(BadInput, match=r"b\.png is 6 × 9 .* takes 6 × 8"):
        read_folder(tmp_path, shape=(3, 6, 8))
    assert read_folder(tmp_path, shape=(3, 6, 8), resize=True).images.shape == (2, 3, 6, 8)


def test_refusals(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no images"):
        read_folder(tmp_path)
    picture(tmp_path / "flat" / "a.png")
    with pytest.raises(BadInput, match="is a file"):
        read_folder(tmp_path / "flat" / "a.png")
    with pytest.raises(BadInput, match="takes 4"):
        read_folder(tmp_path / "flat", shape=(4, 6, 8))
    with pytest.raises(BadInput, match=r"shape \(channels, height, width\)"):
        read_folder(tmp_path / "flat", shape=(6, 8))
    picture(tmp_path / "flat" / "class" / "b.png")
    with pytest.raises(BadInput, match="both images and folders"):
        read_folder(tmp_path / "flat")
    picture(tmp_path / "classes" / "one" / "a.png")
    (tmp_path / "classes" / "two").mkdir()
    with pytest.raises(BadInput, match=r"class folder .*two holds no images"):
        read_folder(tmp_path / "classes")


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n broken"])
def test_unreadable_image_is_named(tmp_path, content):
    (tmp_path / "broken.png").write_bytes(content)
    with pytest.raises(BadInput, match=r"broken\.png cannot be read as an image"):
        read_folder(tmp_path)


def test_an_image_that_would_be_left_out_is_named(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.gif").write_text("no image either")
    assert len(read_folder(tmp_path).images) == 1
    (tmp_path / "b.HEIC").write_bytes(b"")
    with pytest.raises(BadInput, match=r"b\.HEIC is an image of an unsupported type"):
        read_folder(tmp_path)
    (tmp_path / "b.HEIC").unlink()
    (tmp_path / "b.png").symlink_to(tmp_path / "a.png")
    assert len(read_folder(tmp_path).images) == 2
    (tmp_path / "c.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(BadInput, match=r"c\.png is a link to a missing file"):
        read_folder(tmp_path)
