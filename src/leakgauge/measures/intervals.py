"""How sure a number is: the exact interval of a counted rate, and the percentile bootstrap of a mean over samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput


def clopper_pearson(hits: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a success rate after ``hits`` = k of ``trials`` = n, at confidence ``level`` = 1 - α.

    low = B(α/2; k, n-k+1), high = B(1-α/2; k+1, n-k) with B the quantile of the beta distribution; (0, 1) without
    trials. It covers the true rate with at least the stated probability, for any rate.

    Ref: Clopper and Pearson 1934, section 3 — exact binomial interval

    >>> clopper_pearson(0, 10)[0], round(clopper_pearson(0, 10)[1], 4)
    (0.0, 0.3085)
    """
    if not 0 <= hits <= trials:
        raise BadInput(f"a rate needs between 0 and {trials} hits, got {hits}")
    if not 0 < level < 1:
        raise BadInput(f"a confidence level must be between 0 and 1, got {level}")
    tail = (1 - level) / 2
    from scipy.special import betaincinv  # here, because scipy is slow to import

    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return low, high


@dataclass(frozen=True)
class Interval:
    """A value and its interval at confidence ``level`` over draws of the samples."""

    value: float
    low: float
    high: float
    level: float


def mean_interval(values: Tensor, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Mean of ``values`` (N,) with its bootstrap interval."""
    return ratio_interval(values, torch.ones_like(values), level=level, resamples=resamples, seed=seed)


def ratio_interval(
    above: Tensor, below: Tensor, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Σ above / Σ below with its bootstrap interval; both are (N,) and resampled in pairs.

    The interval runs from the (1 - level)/2 to the (1 + level)/2 quantile of the ratio over ``resamples`` draws of N
    samples with replacement.

    Ref: Efron and Tibshirani 1993, chapter 13 — the percentile interval
    """
    if above.ndim != 1 or above.shape != below.shape or len(above) == 0:
        raise BadInput(f"the bootstrap needs two equally long vectors, got {tuple(above.shape)}, {tuple(below.shape)}")
    if not 0 < level < 1 or resamples < 1:
        raise BadInput(f"the bootstrap needs a level in (0, 1) and at least 1 resample, got {level} and {resamples}")
    above, below = above.double().cpu(), below.double().cpu()
    rng = torch.Generator().manual_seed(seed)
    ratios = torch.empty(resamples, dtype=torch.float64)
    chunk = max(1, 4_000_000 // len(above))  # draws in memory at once
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = torch.randint(len(above), (rows, len(above)), generator=rng)
        ratios[start : start + rows] = above[drawn].sum(1) / below[drawn].sum(1)
    ends = torch.quantile(ratios, torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64))
    return Interval(float(above.sum() / below.sum()), float(ends[0]), float(ends[1]), level)
