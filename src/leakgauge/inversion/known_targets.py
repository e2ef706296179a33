"""Targets with a structure, such as boxes: where they were revealed, the replay takes them as given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leakgauge.channels.facts import uses_whole_batch
from leakgauge.channels.targets import of_samples
from leakgauge.core import Loss, Observation, Victim
from leakgauge.inversion.labels import batch_size


@dataclass(frozen=True, eq=False)
class OfKnownTargets:
    """The victim's loss at targets that are known; in their place come the numbers of those ``samples`` that a step is taken on.

    Without ``samples`` every step is taken on all of them in their own order and the numbers are not looked at: a recorded step must
    not ask the device for values.
    """

    loss: Loss
    targets: Mapping[str, Tensor]
    samples: int | None = None

    def __call__(self, output: Any, numbers: Tensor) -> Tensor:
        if self.samples is None:
            return self.loss(output, self.targets)
        return self.loss(output, of_samples(self.targets, numbers.tolist(), samples=self.samples))


def structured(seen: Observation) -> bool:
    """Whether targets were revealed that are no class labels."""
    return isinstance(seen.labels, Mapping)


def with_known_targets(victim: Victim, seen: Observation) -> tuple[Victim, Observation]:
    """The same problem with the revealed targets inside the loss, and in place of labels the samples' numbers."""
    assert isinstance(seen.labels, Mapping)
    known = {name: value.to(victim.device) for name, value in seen.labels.items()}
    size = batch_size(seen)
    loss = OfKnownTargets(victim.loss, known, None if uses_whole_batch(seen.channel, size) else size)
    return replace(victim, loss=loss), replace(seen, labels=torch.arange(size, device=victim.device))
