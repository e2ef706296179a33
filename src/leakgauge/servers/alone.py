"""The client's own look at a model that it was sent: which samples of its batch would stand alone in the update?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.dpsgd import require_separate_samples
from leakgauge.channels.gradient import each_gradient
from leakgauge.core import Targets, Victim

PURE = 0.999
"""From which share of all samples' lengths on a row belongs to one sample."""
LEAST = 1e-6
"""Length of a row, relative to the tensor's longest, below which nothing can be read off it."""


@dataclass(frozen=True)
class Place:
    """Where a sample stands alone: in ``rows`` of the ``of`` rows (or differences of neighbouring rows) of a tensor."""

    tensor: str
    rows: int
    of: int


@dataclass(frozen=True)
class Alone:
    """For each sample of a batch the places where it stands alone; empty for one that is mixed with others everywhere."""

    places: tuple[tuple[Place, ...], ...]

    @property
    def samples(self) -> tuple[int, ...]:
        """Those that stand alone somewhere."""
        return tuple(i for i, found in enumerate(self.places) if found)


def alone(victim: Victim, x: Tensor, y: Targets) -> Alone:
    """Samples whose gradient makes up a row of the update, or a difference of two neighbouring rows, all but alone.

        ‖g_i,r‖ ≥ 0.999 · Σ_j ‖g_j,r‖        for the row r of a weight, with g_j the gradient of sample j

    Whoever gets the update can read such a sample as if it had been sent by itself: its input off a linear layer (imprint, trap
    weights), or by inversion of one sample (fishing). It can also happen with an honest model: in a wide first layer, or where all
    samples but one are fitted well. A sample that stands alone nowhere is not safe for that; it is only not singled out like this.
    The gradients of all samples are held at once: the batch times the size of the model. Truth is the client's own here.
    """
    require_separate_samples(victim)
    each = each_gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())
    places: list[list[Place]] = [[] for _ in range(len(x))]
    for name, rows in each.items():
        if rows.dim() < 3:  # a bias has nothing to read but its own numbers
            continue
        lengths = torch.cat([part.norm(dim=2) for part in _rows(rows.detach().double().flatten(2))], 1)
        together = lengths.sum(0)
        counts = together > LEAST * together.max()
        owner, pure = lengths.argmax(0), counts & (lengths.amax(0) >= PURE * together)
        for i in owner[pure].unique().tolist():
            places[i].append(Place(name, int((pure & (owner == i)).sum()), len(together)))
    return Alone(tuple(map(tuple, places)))


def _rows(each: Tensor) -> Iterator[Tensor]:
    """The rows (samples, rows, entries), and how neighbours differ: an imprint adds up all samples above a cut."""
    yield each
    yield each[:, :-1] - each[:, 1:]
