"""ResNet-18: the published number of parameters, its variants, and what it refuses."""

import pytest
import torch

from leakgauge.errors import BadInput
from reproductions.common.networks import ResNet18


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 11_173_962),
        ({"stem": "imagenet", "classes": 1000}, 11_689_512),
        ({"pre_activation": True}, 11_171_146 + 2 * 512),  # the usual port lacks the paper's last norm
    ],
)
def test_resnet18_has_the_published_number_of_parameters(options, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in ResNet18(**options).parameters()) == count


@pytest.mark.parametrize(
    ("options", "side"), [({}, 32), ({"pre_activation": True}, 32), ({"stem": "imagenet"}, 64)], ids=str
)
def test_shape_and_seed(options, side):
    model, same = (ResNet18(width=8, seed=5, **options) for _ in range(2))
    assert all(a.equal(b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    out = model(torch.zeros(2, 3, side, side))
    assert out.shape == (2, 10)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())  # nothing is made that forward does not use


def test_an_unknown_stem_is_refused():
    with pytest.raises(BadInput):
        ResNet18(stem="mnist")
