"""What a case is run on when the data is a folder of the user's: mixed batches, and no class where nothing names one."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from leakgauge.audit.case import Case
from leakgauge.integrations.setups import find


@pytest.fixture
def model(tmp_path):
    (tmp_path / "m.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))\n"
    )
    return f"{tmp_path}/m.py:make"


def save(path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((2, 2, 3), grey, np.uint8)).save(path)


def test_a_batch_from_class_folders_holds_several_classes(model, tmp_path):
    """In the order of the names the batch would be of one class, and the auxiliary images at the end of another."""
    for label in range(3):
        for i in range(4):
            save(tmp_path / "photos" / f"class{label}" / f"{i}.png", 10 * label + i)
    case = Case(model=model, data=str(tmp_path / "photos"), batch_size=3, reveal=("size", "auxiliary:3"))
    setup = find(case)
    assert setup.labels.tolist() == [0, 1, 2] * 4
    assert (setup.images[:, 0, 0, 0] * 255).round().int().tolist() == [10 * c + i for i in range(4) for c in range(3)]
    assert setup.observation(case).auxiliary[:, 0, 0, 0].mul(255).round().int().tolist() == [3, 13, 23]


def test_images_without_classes_get_all_the_models_classes_in_turn(model, tmp_path):
    """With one label for all there would be nothing to read off a gradient, and nothing to learn."""
    for i in range(5):
        save(tmp_path / "photos" / f"{i}.png", i)
    assert find(Case(model=model, data=str(tmp_path / "photos"))).labels.tolist() == [0, 1, 2, 0, 1]
