from itertools import cycle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.models.seeded import seeded

CLASSES = 4


def _model(*, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    """A small network on 8 × 8 images whose head alone has enough parameters for the probe."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Dropout(dropout),
            nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, CLASSES),
        )  # fmt: skip


@pytest.fixture
def model_of():
    return _model


@pytest.fixture
def data():
    """Images (N, 1, 8, 8) with labels, real enough to have structure: Fashion-MNIST, reduced."""
    images, labels = fashion()
    images = nn.functional.adaptive_avg_pool2d((images[:400] - MEAN[0]) / STD[0], 8)
    return images, labels[:400] % CLASSES


@pytest.fixture
def batches(data):
    """Makes an endless, shuffled stream of batches that does not touch the global generator."""

    def make(size: int = 10, *, seed: int = 0, workers: int = 0):
        rng = torch.Generator().manual_seed(seed)
        loader = DataLoader(
            TensorDataset(*data), batch_size=size, shuffle=True, generator=rng, num_workers=workers, drop_last=True
        )
        return (batch for _ in cycle([0]) for batch in loader)

    return make


@pytest.fixture
def train(batches):
    """Runs a plain loop of ``steps``; ``between`` is called between backward and step."""

    def run(model, optimizer, steps, *, criterion=None, size=10, between=None, workers=0, seed=0):
        criterion = criterion or nn.CrossEntropyLoss()
        stream = batches(size, workers=workers, seed=seed)
        for _ in range(steps):
            x, y = next(stream)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            if between is not None:
                between()
            optimizer.step()

    return run
