"""The client's check of a model it received: which samples of its batch would be isolated in the update?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.dpsgd import require_separate_samples
from leakgauge.channels.gradient import each_gradient
from leakgauge.core import Targets, Victim

PURE = 0.999
"""A row belongs to one sample if that sample has at least this share of the summed norms."""
LEAST = 1e-6
"""Norm of a row, relative to the tensor's largest, below which it is too small to read."""


@dataclass(frozen=True)
class Place:
    """Where a sample is isolated: in ``rows`` of the ``of`` rows (or differences of neighbouring rows) of a tensor."""

    tensor: str
    rows: int
    of: int


@dataclass(frozen=True)
class Isolated:
    """For each sample of a batch the places where it is isolated; empty for a sample that is mixed with others everywhere."""

    places: tuple[tuple[Place, ...], ...]

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples that are isolated somewhere."""
        return tuple(i for i, found in enumerate(self.places) if found)


def find_isolated(victim: Victim, x: Tensor, y: Targets) -> Isolated:
    """Samples that dominate a row of the update, or a difference of two neighbouring rows.

        ‖g_i,r‖ ≥ 0.999 · Σ_j ‖g_j,r‖        for the row r of a weight, with g_j the gradient of sample j

    An adversary with the update can read such a sample as if it had been sent alone: its input from a linear layer (imprint, trap
    weights), or by inverting a single sample (fishing). This also happens with an honest model: in a wide first layer, or if all
    samples but one are fitted well. A sample that is isolated nowhere is not therefore safe; it is only not exposed in this way.
    Memory: the gradients of all samples at once. The true data is used here, because it is the client's own.
    """
    require_separate_samples(victim)
    each = each_gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())
    places: list[list[Place]] = [[] for _ in range(len(x))]
    for name, rows in each.items():
        if rows.dim() < 3:  # a bias reveals no input
            continue
        lengths = torch.cat([part.norm(dim=2) for part in _rows(rows.detach().double().flatten(2))], 1)
        together = lengths.sum(0)
        counts = together > LEAST * together.max()
        owner, pure = lengths.argmax(0), counts & (lengths.amax(0) >= PURE * together)
        for i in owner[pure].unique().tolist():
            places[i].append(Place(name, int((pure & (owner == i)).sum()), len(together)))
    return Isolated(tuple(map(tuple, places)))


def _rows(each: Tensor) -> Iterator[Tensor]:
    """The rows (samples, rows, entries), then the differences of neighbours: an imprint sums all samples above a cut."""
    yield each
    yield each[:, :-1] - each[:, 1:]
