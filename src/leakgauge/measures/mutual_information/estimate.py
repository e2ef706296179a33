"""Input and output of a mutual information estimator: checked pairs in, a held-out value with an interval out."""

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
"""Shares of the pairs for training and for early stopping; the rest is held out."""


@dataclass(frozen=True)
class Estimate:
    """Mutual information in nats. ``nats`` comes from ``n`` held-out pairs, ``in_sample`` from the fitted pairs.

    ``low`` and ``high`` are an approximate 95 % interval of the *held-out value*: they cover what this fitted estimator
    would read on infinite data, not the mutual information itself. ``bound`` says how that value relates to the mutual
    information: ``"lower"`` (at most), ``"upper"`` (at least, under a condition that the estimator states) or ``"none"``.
    ``ceiling`` is the largest value that the estimator can return for any data.

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
        """Whether the value on the fitted pairs is above the held-out interval: then it is memorisation, not information."""
        return self.in_sample > self.high


class Estimator(Protocol):
    """Mutual information of paired rows: ``a`` is (n, p) or (n,), ``b`` is (n, q) or (n,)."""

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate: ...


@dataclass(frozen=True)
class Pairs:
    """Matching rows of both sides; ``a`` is (n, p), ``b`` is (n, q)."""

    a: Tensor
    b: Tensor

    def __len__(self) -> int:
        return len(self.a)

    def __getitem__(self, rows: Tensor) -> Pairs:
        return Pairs(self.a[rows], self.b[rows])

    def to(self, dtype: torch.dtype) -> Pairs:
        return Pairs(self.a.to(dtype), self.b.to(dtype))


def check_pairs(a: Tensor, b: Tensor, *, fewest: int = FEWEST) -> Pairs:
    """Both sides as detached float64 matrices; ``BadInput`` unless finite, of equal length and with at least ``fewest`` rows."""
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
            raise BadInput(f"the {name} side has empty rows; give at least one value per row")
        if not torch.isfinite(side).all():
            raise BadInput(f"the {name} side holds NaN or infinity; remove those pairs before estimating")
    return Pairs(*sides)


def held_out_count(n: int) -> int:
    """The number of pairs out of ``n`` that :func:`split_pairs` holds out."""
    return n - int((TRAIN + VALID) * n)


def split_pairs(pairs: Pairs, seed: int) -> tuple[Pairs, Pairs, Pairs]:
    """Shuffled pairs: training (50 %), early stopping (10 %) and held out (40 %)."""
    n = len(pairs)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    first, second = int(TRAIN * n), n - held_out_count(n)
    return pairs[order[:first]], pairs[order[first:second]], pairs[order[second:]]


def normal_interval(value: float, influences: Tensor) -> tuple[float, float]:
    """value ± 1.96 · std(influences) / √n, where row i of ``influences`` is the contribution of pair i."""
    half = NORMAL_95 * float(influences.double().std()) / math.sqrt(len(influences))
    return value - half, value + half
