"""Shared small things: one thread (two cores are shared by all workers), tiny models, victims and data."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from leakgauge.core import Pixels, Victim
from leakgauge.models.seeded import seeded

torch.set_num_threads(1)

SHAPE = (1, 6, 6)
CLASSES = 4


def _tiny(*, norm: bool = True, dropout: float = 0.0, activation: type[nn.Module] = nn.Sigmoid, seed: int = 0):
    with seeded(seed):
        layers: list[nn.Module] = [nn.Conv2d(1, 3, 3, padding=1)]
        layers += [nn.BatchNorm2d(3)] if norm else []
        layers += [activation(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(3 * 36, CLASSES)]
        model = nn.Sequential(*layers)
        if norm:  # statistics that differ from (0, 1), as a trained model has them
            model[1].running_mean.normal_()
            model[1].running_var.uniform_(0.5, 2)
            nn.init.uniform_(model[1].weight, 0.5, 2)
    return model


@pytest.fixture(autouse=True)
def _fixed_randomness():
    """Weights and data that a test draws without a generator are the same in every run, whatever ran before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries under test draw from it
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    """Trained priors are kept among the files of the tests, not in the user's cache."""
    monkeypatch.setenv("LEAKGAUGE_CACHE", str(tmp_path_factory.getbasetemp() / "priors"))


@pytest.fixture
def tiny():
    """Makes a convolution, batch normalisation, an activation, dropout and a linear head for 1 × 6 × 6 images."""
    return _tiny


@pytest.fixture
def victim_of(tiny):
    """Makes a victim around a tiny model; ``model`` may be given instead of its options."""

    def make(model: nn.Module | None = None, *, mode: str = "eval", loss=nn.functional.cross_entropy, **options):
        return Victim(tiny(**options) if model is None else model, Pixels(SHAPE), loss=loss, mode=mode)

    return make


@pytest.fixture
def batch_of():
    """Makes ``n`` images and labels of the tiny models' shape."""

    def make(n: int, *, seed: int = 0):
        rng = torch.Generator().manual_seed(seed)
        return torch.rand(n, *SHAPE, generator=rng), torch.randint(CLASSES, (n,), generator=rng)

    return make


@pytest.fixture
def same():
    """Whether two signals hold the same names and values, within ``tolerance`` of the largest value."""

    def check(a, b, *, tolerance: float = 1e-6):
        assert list(a) == list(b)
        for name in a:
            torch.testing.assert_close(
                a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )

    return check
