"""The reference replay: explicit gradients, one restart after another. Every faster path must equal it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from leakgauge.channels.facts import uses_whole_batch
from leakgauge.core import Channel, Signal, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.observed import Observed

Weights = Mapping[str, float]
"""Weight of each named tensor in a distance; absent names do not count."""


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
        """The input of the captured module, shape (R, B, ...)."""
        ...


@dataclass(frozen=True, eq=False)
class ExplicitReplay:
    """A replay that holds every candidate's whole signal."""

    signals: Sequence[Signal]
    observed: Observed
    """For these rows only, if each row has its own."""
    captured: Sequence[Mapping[str, Tensor]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.observed.signal)

    def _target(self, row: int) -> Signal:
        return (
            self.observed.signal if not self.observed.per_row else {n: t[row] for n, t in self.observed.signal.items()}
        )

    def dot(self, weights: Weights) -> Tensor:
        return self._rows(weights, lambda g, t: torch.dot(g.flatten(), t.flatten()))

    def square(self, weights: Weights) -> Tensor:
        return self._rows(weights, lambda g, t: torch.dot(g.flatten(), g.flatten()))

    def l2(self, weights: Weights) -> Tensor:
        return self._rows(weights, lambda g, t: (g - t).square().sum())

    def l1(self, weights: Weights) -> Tensor:
        return self._rows(weights, lambda g, t: (g - t).abs().sum())

    def _rows(self, weights: Weights, compare: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        rows = []
        for row, signal in enumerate(self.signals):
            target = self._target(row)
            rows.append(torch.stack([w * compare(signal[n], target[n]) for n, w in weights.items()]).sum())
        return torch.stack(rows)

    def observed_square(self, weights: Weights) -> Tensor:
        return self.observed.square(weights)

    def gradient(self, name: str) -> Tensor:
        return torch.stack([g[name] for g in self.signals])

    def inputs(self, name: str) -> Tensor:
        return torch.stack([seen[name] for seen in self.captured])


@dataclass(frozen=True, eq=False)
class Reference:
    """Replays ``channel`` on each row of candidates separately; ``capture`` names modules whose inputs are recorded.

    These inputs cover all samples at the public weights, even if the channel distributes the samples over steps or clients.
    """

    victim: Victim
    channel: Channel
    observed: Observed
    capture: tuple[str, ...] = ()

    def __call__(self, x: Tensor, y: Tensor) -> Replay:
        """Candidates x (R, B, ...) with targets y (R, B) or class probabilities (R, B, C)."""
        return self.rows(x, y, slice(None))

    def rows(self, x: Tensor, y: Tensor, which: Sequence[int] | slice) -> Replay:
        """The same for candidates of only some rows (``which``) of the observation."""
        signals, captured = [], []
        together = uses_whole_batch(self.channel, x.shape[1])  # else one pass of the channel sees only some samples
        for row in range(len(x)):
            with capturing(self.victim.model, self.capture if together else ()) as seen:
                signals.append(self.channel(self.victim, x[row], y[row]))
            if self.capture and not together:
                with capturing(self.victim.model, self.capture) as seen:
                    self.victim(x[row])
            captured.append(seen)
        return ExplicitReplay(signals, self.observed.take(which), captured)


@contextmanager
def capturing(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collects the first input (by position or by name) of the named modules while the block runs, then removes the hooks."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            seen.setdefault(name, inputs[0] if inputs else next(iter(named.values())))

        return hook

    handles = [model.get_submodule(name).register_forward_pre_hook(keep(name), with_kwargs=True) for name in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def inputs_of(victim: Victim, names: Sequence[str], x: Tensor, *, seed: int = 0) -> dict[str, Tensor]:
    """What enters the named modules when the model sees ``x`` in input space; what it draws, it draws from ``seed``."""
    with torch.no_grad(), private_randomness(seed, victim.device), capturing(victim.model, names) as seen:
        victim(x)
    return seen


@contextmanager
def outputs_of(model: nn.Module, name: str) -> Iterator[list[Any]]:
    """Collects what the named module returns, once for each time it runs, while the block runs, then removes the hook."""
    made: list[Any] = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, inputs, output: made.append(output))
    try:
        yield made
    finally:
        handle.remove()
