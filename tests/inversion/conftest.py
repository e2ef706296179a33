"""Looks at one term of an objective at given candidates, through the one loop that attacks run."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from leakgauge.core import Labels, Size, share
from leakgauge.inversion import Adam, Descent, Matching


@dataclass(frozen=True, eq=False)
class At:
    """Starts exactly there: x is (rows, size, *shape)."""

    x: torch.Tensor

    def __call__(self, space, seen, rows, size, *, rng):
        assert self.x.shape == (rows, size, *space.shape)
        return self.x.clone()


@pytest.fixture
def start_at():
    return At


@pytest.fixture
def seen_by():
    """What an adversary who knows size and labels sees."""

    def make(victim, channel, x, y, **options):
        return share(victim, channel, x, y, reveal=(Size(), Labels()), **options)

    return make


@pytest.fixture
def values_at():
    """Values (R,) of a term at candidates x (R, B, *shape): the losses with which a run from there begins."""

    def evaluate(term, victim, seen, x):
        attack = Matching(term, start=At(x), solver=Descent(Adam(1e-9), 1, project=False), restarts=len(x))
        return attack(victim, seen).trace.losses[0]

    return evaluate
