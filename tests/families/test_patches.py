"""The side of a model's patches, and where it has none that could be put in order."""

import pytest

from leakgauge.families import find_roles
from leakgauge.families.patches import patch_side
from leakgauge.models import CNN, ViT
from reproductions.common.networks import Swin


@pytest.mark.parametrize(
    ("side", "patch", "found"),
    [(28, 7, 7), (32, 16, 16), (32, 4, 4), (32, 2, None), (68, 4, None), (16, 16, None), (8, 4, 4)],
)
def test_patches_of_a_vision_transformer(side, patch, found):
    """None where they are little more than colours, where there is one alone, or where there are very many."""
    model = ViT(in_channels=1, side=side, patch=patch, classes=3, width=12, depth=1, heads=2, seed=0)
    assert patch_side(model, (1, side, side)) == found


def test_a_convolutional_network_has_none():
    assert patch_side(CNN(), (1, 28, 28)) is None


def test_patches_that_overlap_or_do_not_fill_the_image():
    model = ViT(in_channels=1, side=32, patch=8, classes=3, width=12, depth=1, heads=2, seed=0)
    assert patch_side(model, (1, 36, 32)) is None
    assert patch_side(model, (32,)) is None
    layer = model.get_submodule(find_roles(model).patch_embedding)
    layer.stride = (4, 4)
    assert patch_side(model, (1, 32, 32)) is None


def test_a_swin_of_small_patches():
    shape = {"width": 12, "depths": (1, 1), "heads": (2, 2), "classes": 3, "window": 4}
    assert patch_side(Swin(side=32, patch=4, **shape), (3, 32, 32)) == 4
    assert patch_side(Swin(side=32, patch=2, **shape), (3, 32, 32)) is None
