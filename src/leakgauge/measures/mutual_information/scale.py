"""Brings both sides to a common scale, learned on training pairs only."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.measures.mutual_information.estimate import Pairs

FLAT = 1e-12
TO_DEVIATION = 1.4826
"""Median absolute deviation times this is the standard deviation of a Gaussian."""

Scale = Callable[[Tensor], Tensor]


def standardise(train: Pairs, *others: Pairs) -> tuple[Pairs, ...]:
    """Each coordinate minus its mean, divided by its standard deviation on ``train``; constant coordinates become 0."""
    return _scale((_by_moments(train.a), _by_moments(train.b)), (train, *others))


def tame_tails(train: Pairs, *others: Pairs) -> tuple[Pairs, ...]:
    """asinh of each coordinate minus its median, divided by its robust deviation on ``train``.

    The map is invertible, so the mutual information is unchanged. It keeps a critic stable when a sample of a heavy tail is
    fifty deviations away.
    """
    return _scale((_by_ranks(train.a), _by_ranks(train.b)), (train, *others))


def _scale(scales: tuple[Scale, Scale], parts: tuple[Pairs, ...]) -> tuple[Pairs, ...]:
    left, right = scales
    return tuple(Pairs(left(part.a), right(part.b)) for part in parts)


def _by_moments(train: Tensor) -> Scale:
    mean, deviation = train.mean(0), _or_one(train.std(0))
    return lambda values: (values - mean) / deviation


def _by_ranks(train: Tensor) -> Scale:
    middle = train.median(0).values
    deviation = TO_DEVIATION * (train - middle).abs().median(0).values
    deviation = _or_one(torch.where(deviation > FLAT, deviation, train.std(0)))  # e.g. a coordinate that is mostly zero
    return lambda values: torch.asinh((values - middle) / deviation)


def _or_one(deviation: Tensor) -> Tensor:
    return torch.where(deviation > FLAT, deviation, torch.ones_like(deviation))
