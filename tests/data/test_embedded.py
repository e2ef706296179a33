from pathlib import Path

import pytest
import torch

import leakgauge.data
from leakgauge.data.embedded import PHOTOGRAPHS, fashion, photographs
from leakgauge.errors import BadInput

FOLDER = Path(leakgauge.data.__file__).parent / "embedded"


@pytest.mark.parametrize(("split", "count"), [("train", 3000), ("test", 1000)])
def test_fashion_is_balanced_and_equal_across_calls(split, count):
    x, y = fashion(split)
    assert x.shape == (count, 1, 28, 28)
    assert x.dtype == torch.float32
    assert (x.min(), x.max()) == (0, 1)
    assert y.bincount().tolist() == [count // 10] * 10
    assert y[:10].tolist() == list(range(10))
    x.zero_()  # a caller's change must not reach the next one
    again, _ = fashion(split)
    assert again.sum() > 0


def test_fashion_looks_like_its_classes():
    """Trousers are dark at the left and right edge and bright in the middle; a sheet cut wrongly would not be."""
    x, y = fashion("test")
    columns = x[y == 1].mean((0, 1, 2))
    assert columns[:4].max() < 0.05
    assert columns[-4:].max() < 0.05
    assert columns[10:18].min() > 0.3


def test_fashion_refuses_an_unknown_split():
    with pytest.raises(BadInput, match="'train' and 'test'"):
        fashion("valid")  # pyright: ignore


@pytest.mark.parametrize("side", [32, 224])
def test_photographs(side):
    x = photographs(side)
    assert x.shape == (len(PHOTOGRAPHS), 3, side, side)
    assert 0 <= x.min() < x.max() <= 1
    assert (x.flatten(1).std(1) > 0.05).all()


def test_photographs_refuse_a_bad_side():
    with pytest.raises(BadInput, match="positive side"):
        photographs(0)


def test_files_are_small_and_each_has_a_licence():
    files = list(FOLDER.iterdir())
    assert sum(f.stat().st_size for f in files) <= 3_000_000
    text = (FOLDER / "LICENSES.md").read_text("utf-8")
    assert "MIT" in text
    for file in files:
        assert file.name == "LICENSES.md" or file.name in text or f"{file.stem}.*" in text
