"""Adds random noise to what is sent."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.channels.rows import column, row_norms
from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@dataclass(frozen=True, kw_only=True)
class _Noise(ABC):
    """Give exactly one of the three strengths; σ is the standard deviation of one entry of the noise.

    ``std``: σ itself. ``relative``: σ = relative·‖g‖/√d, so the norm of the noise is ``relative`` times that of the whole
    gradient g with d entries. ``variance_to_norm``: σ² = variance_to_norm·‖g‖, the APRIL paper's wording taken literally.
    For features, each sample has its own norm ‖g‖.

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

    def deviation(self, signal: Signal, /) -> float:
        """σ for this signal."""
        return float(self._deviations({name: t[None] for name, t in signal.items()}))

    def _deviations(self, signal: Signal) -> Tensor:
        """σ of each row of the tensors, shape (rows,), float64."""
        norms = row_norms(signal)
        if self.std is not None:
            return torch.full_like(norms, self.std)
        if self.relative is not None:
            entries = sum(t[0].numel() for t in signal.values())
            return self.relative * norms / math.sqrt(max(1, entries))
        assert self.variance_to_norm is not None
        return (self.variance_to_norm * norms).sqrt()

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same with each row as a separate signal."""
        deviations = self._deviations(signal)
        return {name: t + column(deviations, t) * self.unit(t, rng) for name, t in signal.items()}

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        sigma = self.deviation(signal)
        return {name: t + sigma * self.unit(t, rng) for name, t in signal.items()}

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain`` itself, the mean of what is sent."""
        return plain

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent. Noise of the same size on every entry makes the squared distance to it the likelihood of ``plain``."""
        return sent

    @abstractmethod
    def unit(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """Noise with deviation 1."""


@example(relative=0.5, neutral={"std": 0.0})
@checked(nan=True)
@dataclass(frozen=True, kw_only=True)
class GaussianNoise(_Noise):
    """g + N(0, σ²) on every entry."""

    def unit(self, like: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn(like.shape, generator=rng).to(like)


@example(std=0.1, neutral={"relative": 0.0})
@checked(nan=True)
@dataclass(frozen=True, kw_only=True)
class LaplacianNoise(_Noise):
    """g + Laplace(0, b) on every entry; b = σ/√2 makes σ its standard deviation."""

    def unit(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """Difference of two exponential draws, a Laplace variable of scale 1, divided by its deviation √2."""
        first, second = (torch.empty(like.shape).exponential_(generator=rng) for _ in range(2))
        return ((first - second) / math.sqrt(2)).to(like)
