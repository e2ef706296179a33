"""Random noise on what is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core import Signal
from leakgauge.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class _Noise:
    """Exactly one of the three strengths is given; σ is the standard deviation of one entry of the noise.

    ``std``: σ itself. ``relative``: σ = relative·‖g‖/√d, so that noise is ``relative`` times as long as the whole
    gradient g of d entries. ``variance_to_norm``: σ² = variance_to_norm·‖g‖, the APRIL paper's words read literally.

    Ref: APRIL (Lu et al. 2022), Fig. 6 — noise measured against the gradient norm
    """

    std: float | None = None
    relative: float | None = None
    variance_to_norm: float | None = None

    def __post_init__(self) -> None:
        given = [v for v in (self.std, self.relative, self.variance_to_norm) if v is not None]
        if len(given) != 1 or given[0] < 0 or not math.isfinite(given[0]):
            raise BadInput(
                f"{type(self).__name__} needs exactly one of std, relative, variance_to_norm, at least 0; got {self}"
            )

    def deviation(self, signal: Signal) -> float:
        """σ for this signal."""
        if self.std is not None:
            return self.std
        norm = math.sqrt(sum(float(t.double().square().sum()) for t in signal.values()))
        if self.relative is not None:
            return self.relative * norm / math.sqrt(max(1, sum(t.numel() for t in signal.values())))
        assert self.variance_to_norm is not None
        return math.sqrt(self.variance_to_norm * norm)


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(_Noise):
    """g + N(0, σ²) on every entry."""

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        sigma = self.deviation(signal)
        return {name: t + sigma * torch.randn(t.shape, generator=rng).to(t) for name, t in signal.items()}


@dataclass(frozen=True, kw_only=True)
class LaplacianNoise(_Noise):
    """g + Laplace(0, b) on every entry, with b = σ/√2 so that σ is its standard deviation."""

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        scale = self.deviation(signal) / math.sqrt(2)
        return {name: t + scale * _laplace(t, rng) for name, t in signal.items()}


def _laplace(like: Tensor, rng: torch.Generator) -> Tensor:
    """Difference of two exponential draws: a Laplace variable of scale 1."""
    first, second = (torch.empty(like.shape).exponential_(generator=rng) for _ in range(2))
    return (first - second).to(like)
