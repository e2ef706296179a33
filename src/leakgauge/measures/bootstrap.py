"""The uncertainty of a mean over samples: percentile bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput


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
