"""Replay of any channel for all rows at once through vmap: for federated averaging, and where the rules do not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from leakgauge.channels.gradient import inside_transform
from leakgauge.channels.rows import as_rows
from leakgauge.core import Channel, Victim
from leakgauge.engine.observed import Observed
from leakgauge.engine.reference import Replay, Weights
from leakgauge.engine.rules.sums import row_dot


@dataclass(frozen=True, eq=False)
class StackedReplay:
    """A replay that holds the signals of all rows as tensors (R, *shape)."""

    signals: Mapping[str, Tensor]
    observed: Observed

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.observed.signal)

    def _sum(self, weights: Weights, each: Callable[[str], Tensor]) -> Tensor:
        return torch.stack([w * each(name) for name, w in weights.items()]).sum(0)

    def dot(self, weights: Weights) -> Tensor:
        return self._sum(weights, lambda name: row_dot(self.signals[name], self.observed.signal[name]))

    def square(self, weights: Weights) -> Tensor:
        return self._sum(weights, lambda name: as_rows(self.signals[name]).square().sum(1))

    def l2(self, weights: Weights) -> Tensor:
        return self._sum(weights, lambda name: self._difference(name).square().sum(1))

    def l1(self, weights: Weights) -> Tensor:
        return self._sum(weights, lambda name: self._difference(name).abs().sum(1))

    def _difference(self, name: str) -> Tensor:
        return as_rows(self.signals[name] - self.observed.signal[name])

    def observed_square(self, weights: Weights) -> Tensor:
        return self.observed.square(weights)

    def gradient(self, name: str) -> Tensor:
        return self.signals[name]

    def inputs(self, name: str) -> Tensor:
        raise RuntimeError("vmap does not capture the inputs of modules")


class _WithoutRunningStatistics(TorchFunctionMode):
    """Keeps train-mode batch normalisation from writing into its buffers, which all rows would share."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given: list[Any] = list(args)
        if func is F.batch_norm and kwargs.get("training", len(given) > 5 and given[5]):
            given[1:3] = None, None
        if func is Tensor.add_ and not given[0].is_floating_point():  # num_batches_tracked
            return given[0]
        return func(*given, **kwargs)


@dataclass(frozen=True, eq=False)
class VmapReplay:
    """Replays ``channel`` on all rows through vmap."""

    victim: Victim
    channel: Channel
    observed: Observed

    def __call__(self, x: Tensor, y: Tensor) -> Replay:
        with inside_transform(), _WithoutRunningStatistics():
            signals = torch.vmap(self._one, randomness="different")(x, y)
        return StackedReplay({name: signals[name] for name in self.observed.signal}, self.observed)

    def _one(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return dict(self.channel(self.victim, x, y))
