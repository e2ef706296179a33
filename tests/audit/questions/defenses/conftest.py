"""A tiny victim whose data can be learned: the class of an image is its brightest quarter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.audit.session import Setup


def labelled(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose brightest quarter is their class."""
    rng = torch.Generator().manual_seed(5)
    images, labels = 0.5 * torch.rand(count, 1, 6, 6, generator=rng), torch.arange(count) % 4
    for label in range(4):
        top, left = 3 * (label // 2), 3 * (label % 2)
        images[labels == label, :, top : top + 3, left : left + 3] += 0.5
    return images, labels


@pytest.fixture
def setup_of(victim_of):
    def make(count: int = 240, *, mode: str = "eval", **options) -> Setup:
        return Setup(victim_of(mode=mode, activation=nn.ReLU, **options), *labelled(count))

    return make


@pytest.fixture
def setup(setup_of) -> Setup:
    return setup_of()


@pytest.fixture
def load(setup_of):
    return lambda case: setup_of(mode=case.mode)
