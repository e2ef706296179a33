"""Sends only some channels of the features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


def channel_axis(shape: tuple[int, ...]) -> int:
    """The axis of the channels in one sample's features: the last for tokens (T, C), else the first.

    >>> channel_axis((64, 8, 8)), channel_axis((257, 128)), channel_axis((512,))
    (0, 1, 0)
    """
    return 1 if len(shape) == 2 else 0


@dataclass(frozen=True)
class _OfChannels(ABC):
    """Sets a ``fraction`` of the channels to zero; in a signal other than features, of the rows of each tensor."""

    fraction: float

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise BadInput(f"{type(self).__name__} needs a fraction between 0 and 1, got {self.fraction}")

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        return {name: self._kept(t[None], 1 if t.dim() else 0)[0] for name, t in signal.items()}

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The channels of features (samples, \\*shape)."""
        return {
            name: self._kept(t, 1 + channel_axis(tuple(t.shape[1:])) if t.dim() > 1 else 0)
            for name, t in signal.items()
        }

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain`` without those channels."""
        return self.by_row(plain, rng=torch.Generator())

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """What was sent, and ``plain`` where that is zero."""
        return {name: torch.where(t != 0, t, plain[name]) for name, t in sent.items()}

    def _kept(self, rows: Tensor, axis: int) -> Tensor:
        count = round(self.fraction * rows.shape[axis])
        if count == 0 or axis == 0:
            return rows.clone()
        moved = rows.movedim(axis, 1)
        dropped = self._dropped(moved, count)  # (rows, count)
        mask = torch.ones(moved.shape[:2], dtype=torch.bool, device=rows.device).scatter(1, dropped, False)
        kept = torch.where(mask.view(*mask.shape, *[1] * (moved.dim() - 2)), moved, 0.0)
        return kept.to(rows.dtype).movedim(1, axis)

    @abstractmethod
    def _dropped(self, rows: Tensor, count: int) -> Tensor:
        """Which ``count`` channels of each row (samples, channels, ...) to drop, shape (samples, count)."""


@example(fraction=0.5, seed=1, neutral={"fraction": 0.0})
@checked
@dataclass(frozen=True)
class MaskChannels(_OfChannels):
    """Never sends a ``fraction`` of the channels, drawn once by ``seed``: the same for every sample."""

    seed: int = 0

    def _dropped(self, rows: Tensor, count: int) -> Tensor:
        order = torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(self.seed))
        return order[:count].to(rows.device).expand(len(rows), count)


@example(fraction=0.5, neutral={"fraction": 0.0})
@checked
@dataclass(frozen=True)
class PruneChannels(_OfChannels):
    """Does not send the ``fraction`` of channels with the smallest sum of squares, chosen separately for each sample."""

    def _dropped(self, rows: Tensor, count: int) -> Tensor:
        energy = rows.double().square().flatten(2).sum(2) if rows.dim() > 2 else rows.double().square()
        return energy.argsort(1)[:, :count]
