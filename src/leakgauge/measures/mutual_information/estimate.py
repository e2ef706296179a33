"""What an estimator of mutual information takes and gives: checked pairs in, a held-out value with an interval out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from leakgauge.errors import BadInput

Bound = Literal["lower", "upper", "none"]

NORMAL_95 = 1.959964
"""Two-sided 95 % point of the normal distribution."""
FEWEST = 40
TRAIN, VALID = 0.5, 0.1
"""Shares of the pairs for fitting and for stopping; the rest is held out."""


@dataclass(frozen=True)
class Estimate:
    """Mutual information in nats. ``nats`` comes from ``n`` pairs that had no part in the fit, ``in_sample`` from those that had.

    ``low`` and ``high`` are an approximate 95 % interval of the *held-out value*: they cover what this fitted estimator
    would read on endless data, not the mutual information itself. ``bound`` says on which side that value lies:
    ``"lower"`` (at most the mutual information), ``"upper"`` (at least, under a condition the estimator states) or
    ``"none"``. ``ceiling`` is the largest value that the estimator can give, whatever the data.

    >>> Estimate(nats=0.1, low=0.0, high=0.2, in_sample=3.0, n=80).overfitted
    True
    """

    nats: float
    low: float
    high: float
    in_sample: float
    n: int
    bound: Bound = "none"
    ceiling: float = math.inf

    @property
    def overfitted(self) -> bool:
        """Whether the value on the fitted pairs lies above the held-out interval: it is then memory, not information."""
        return self.in_sample > self.high


class Estimator(Protocol):
    """Mutual information of paired rows: ``a`` is (n, p) or (n,), ``b`` is (n, q) or (n,)."""

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate: ...


@dataclass(frozen=True)
class Pairs:
    """Rows of both sides that belong together; ``a`` is (n, p), ``b`` is (n, q)."""

    a: Tensor
    b: Tensor

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, rows: Tensor) -> Pairs:
        return Pairs(self.a[rows], self.b[rows])

    def to(self, dtype: torch.dtype) -> Pairs:
        return Pairs(self.a.to(dtype), self.b.to(dtype))


def checked(a: Tensor, b: Tensor, *, fewest: int = FEWEST) -> Pairs:
    """Both sides as float64 matrices, detached; ``BadInput`` unless finite, of one length and at least ``fewest`` rows."""
    if a.ndim == 0 or b.ndim == 0 or len(a) != len(b):
        raise BadInput(
            f"both sides must hold the same number of rows, got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if len(a) < fewest:
        raise BadInput(
            f"mutual information needs at least {fewest} pairs, got {len(a)}; collect more before estimating"
        )
    sides = [side.detach().double().reshape(len(side), -1) for side in (a, b)]
    for name, side in zip(("first", "second"), sides, strict=True):
        if side.shape[1] == 0:
            raise BadInput(f"the {name} side has rows without values; give at least one value per row")
        if not torch.isfinite(side).all():
            raise BadInput(f"the {name} side holds NaN or infinity; remove those pairs before estimating")
    return Pairs(*sides)


def held_out(n: int) -> int:
    """How many of ``n`` pairs :func:`split` holds out."""
    return n - int((TRAIN + VALID) * n)


def split(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs, Pairs]:
    """Shuffled pairs for training (50 %), for stopping (10 %) and held out (40 %)."""
    n = len(pairs)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    first, second = int(TRAIN * n), n - held_out(n)
    return pairs[order[:first]], pairs[order[first:second]], pairs[order[second:]]


def interval(value: float, influences: Tensor) -> tuple[float, float]:
    """value ± 1.96 · std(influences) / √n, where row i of ``influences`` is what pair i adds to the value."""
    half = NORMAL_95 * float(influences.double().std()) / math.sqrt(len(influences))
    return value - half, value + half
