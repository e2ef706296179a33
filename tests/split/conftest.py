"""A small convolutional victim on smooth random pictures of four classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from leakgauge.core import Pixels, Victim
from leakgauge.models.vgg import VGG
from leakgauge.split.scan import Images

SIDE = 8


def pictures(count: int, *, seed: int = 0) -> Images:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    coarse = torch.rand(count, 1, 3, 3, generator=rng)
    smooth = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear", align_corners=True)
    return Images((0.25 * labels.view(-1, 1, 1, 1) + 0.75 * smooth).clamp(0, 1), labels)


@pytest.fixture(scope="session")
def victim() -> Victim:
    return Victim(VGG(in_channels=1, side=SIDE, stages=((6, 6), (8,)), classes=4), Pixels((1, SIDE, SIDE), mean=(0.5,)))


@pytest.fixture(scope="session")
def some():
    return pictures
