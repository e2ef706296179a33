"""Figures of the split-inference study, from a made-up run of full size."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FOLDER = Path(__file__).parents[2] / "reproductions" / "golden_partition_zone"


@pytest.fixture
def full(golden_run):
    return golden_run.full_size()


def pictures(rows):
    colour = np.arange(6 * 3 * 64 * 64, dtype=np.uint32).reshape(6, 3, 64, 64).astype(np.uint8)
    made = {
        row["key"]: colour[:, :1] if row["data"] in ("kmnist", "faces") else colour for row in rows if "decoder" in row
    }
    return {**made, "truth/cifar10": colour, "truth/kmnist": colour[:, :1], "truth/faces": colour[:, :1]}


def test_every_figure_has_an_alternative_text_and_is_drawn(scripts, full, tmp_path):
    figures = scripts["figures"]
    made = figures.draw(full, pictures(full), tmp_path)
    assert {path.name for path in made} == set(figures.ALT)
    assert set(figures.ALT) == set(figures.curves(full)) | set(figures.STRIPS) | {"zone.svg", "training.svg"}
    vgg = (tmp_path / "vgg19.svg").read_text()
    assert vgg.count("fill-opacity") == 2 * 3 + 2, "a band for both kinds of labels in every panel"
    assert "one-hot, 100 epochs" in vgg
    assert Image.open(tmp_path / "strips_faces.png").height == 23 + 3 * 68
    text = (FOLDER / "README.md").read_text("utf-8")
    assert all(f"<!-- figure {name} -->" in text for name in figures.ALT)


def test_what_was_not_measured_is_not_drawn(scripts, golden_run, tmp_path):
    made = scripts["figures"].draw(golden_run.zone(), {}, tmp_path)
    assert [path.name for path in made] == ["zone.svg"]
    assert scripts["figures"].draw([], {}, tmp_path) == []


def test_a_missing_reconstruction_stays_white_and_a_block_without_any_has_no_column(scripts, full, tmp_path):
    figures, shown = scripts["figures"], pictures(full)

    def drawn(name):
        figures.strip(tmp_path / name, figures.STRIPS[name], full, shown)
        return np.asarray(Image.open(tmp_path / name))

    whole = drawn("strips_vgg19.png")
    del shown["vgg19-curve/cifar10/LS+/0/52/deconvolution, paper"]
    partly = drawn("strips_vgg19.png")
    assert partly.shape == whole.shape
    last = (slice(23 + 3 * 68, 23 + 3 * 68 + 64), slice(-68, -4))  # first row of LS+, block 52
    assert (partly[last] == 255).all()
    assert not (whole[last] == 255).all()
    del shown["vgg19-curve/cifar10/one-hot/0/52/deconvolution, paper"]
    assert drawn("strips_vgg19.png").shape[1] == whole.shape[1] - 68


def test_pictures_are_found_by_their_key(scripts, tmp_path):
    np.savez_compressed(tmp_path / "a__b.npz", key="a/b", images=np.zeros((1, 1, 2, 2), np.uint8))
    (tmp_path / ".123.npz").write_bytes(b"half a file of a process that was stopped")
    assert list(scripts["figures"].pictures_of(tmp_path)) == ["a/b"]
