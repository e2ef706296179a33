"""The reference replay: explicit gradients, one restart after another. Every faster path must equal it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from leakgauge.core import Channel, Signal, Victim
from leakgauge.engine.observed import Observed

Weights = Mapping[str, float]
"""Weight of each named tensor in a distance; names that are absent do not count."""


class Replay(Protocol):
    """One replay of the channel for R candidates against an observation. Every result has R rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the observed tensors, in the model's order."""
        ...

    def dot(self, weights: Weights) -> Tensor:
        """Σ_n w_n ⟨g_n, g*_n⟩, shape (R,)."""
        ...

    def square(self, weights: Weights) -> Tensor:
        """Σ_n w_n ‖g_n‖², shape (R,)."""
        ...

    def l2(self, weights: Weights) -> Tensor:
        """Σ_n w_n ‖g_n − g*_n‖², shape (R,), from explicit differences (the expanded square cancels)."""
        ...

    def l1(self, weights: Weights) -> Tensor:
        """Σ_n w_n ‖g_n − g*_n‖₁, shape (R,)."""
        ...

    def observed_square(self, weights: Weights) -> Tensor:
        """Σ_n w_n ‖g*_n‖², a scalar or shape (R,)."""
        ...

    def gradient(self, name: str) -> Tensor:
        """The candidate's own signal of one name, shape (R, *shape)."""
        ...

    def inputs(self, name: str) -> Tensor:
        """What entered the captured module, shape (R, B, ...)."""
        ...


@dataclass(frozen=True, eq=False)
class Explicit:
    """A replay that holds every candidate's whole signal."""

    signals: Sequence[Signal]
    observed: Observed
    captured: Sequence[Mapping[str, Tensor]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.observed.signal)

    def dot(self, weights: Weights) -> Tensor:
        target = self.observed.signal
        return torch.stack([
            _total(w * torch.dot(g[n].flatten(), target[n].flatten()) for n, w in weights.items()) for g in self.signals
        ])  # fmt: skip

    def square(self, weights: Weights) -> Tensor:
        return torch.stack([
            _total(w * torch.dot(g[n].flatten(), g[n].flatten()) for n, w in weights.items()) for g in self.signals
        ])  # fmt: skip

    def l2(self, weights: Weights) -> Tensor:
        target = self.observed.signal
        return torch.stack([
            _total(w * (g[n] - target[n]).square().sum() for n, w in weights.items()) for g in self.signals
        ])  # fmt: skip

    def l1(self, weights: Weights) -> Tensor:
        target = self.observed.signal
        return torch.stack([
            _total(w * (g[n] - target[n]).abs().sum() for n, w in weights.items()) for g in self.signals
        ])  # fmt: skip

    def observed_square(self, weights: Weights) -> Tensor:
        return _total(w * self.observed.squares[n] for n, w in weights.items())

    def gradient(self, name: str) -> Tensor:
        return torch.stack([g[name] for g in self.signals])

    def inputs(self, name: str) -> Tensor:
        return torch.stack([seen[name] for seen in self.captured])


def _total(terms: Iterator[Tensor]) -> Tensor:
    return torch.stack(list(terms)).sum()


@dataclass(frozen=True, eq=False)
class Reference:
    """Replays ``channel`` on each row of candidates by itself; ``capture`` names modules whose inputs are wanted."""

    victim: Victim
    channel: Channel
    observed: Observed
    capture: tuple[str, ...] = ()

    def __call__(self, x: Tensor, y: Tensor) -> Replay:
        """Candidates x (R, B, ...) with targets y (R, B) or class probabilities (R, B, C)."""
        signals, captured = [], []
        for row in range(len(x)):
            with capturing(self.victim.model, self.capture) as seen:
                signals.append(self.channel(self.victim, x[row], y[row]))
            captured.append(seen)
        return Explicit(signals, self.observed, captured)


@contextmanager
def capturing(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collects the first input of the named modules while the block runs; the hooks are gone afterwards."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen.setdefault(name, inputs[0])

        return hook

    handles = [model.get_submodule(name).register_forward_pre_hook(keep(name)) for name in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
