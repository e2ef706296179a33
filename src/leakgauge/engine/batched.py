"""Replay of a channel that sends one row per sample: the samples of all restarts are one batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leakgauge.core import Channel, Victim
from leakgauge.engine.observed import Observed
from leakgauge.engine.reference import Replay
from leakgauge.engine.vmapped import StackedReplay


@dataclass(frozen=True, eq=False)
class BatchedReplay:
    """Replays ``channel`` once on the samples of all rows."""

    victim: Victim
    channel: Channel
    observed: Observed

    def __call__(self, x: Tensor, y: Tensor) -> Replay:
        signal = self.channel(self.victim, x.flatten(0, 1), y.flatten(0, 1))
        rows = {name: signal[name].unflatten(0, x.shape[:2]) for name in self.observed.signal}
        return StackedReplay(rows, self.observed)
