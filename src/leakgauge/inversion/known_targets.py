"""Structured targets such as boxes: if they were revealed, the replay uses them as given."""

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
    """The victim's loss at known targets. Instead of targets it takes the numbers of the ``samples`` in the current step.

    Without ``samples`` every step uses all of them in order and ignores the numbers: a recorded step must not read values from
    the device.
    """

    loss: Loss
    targets: Mapping[str, Tensor]
    samples: int | None = None

    def __call__(self, output: Any, numbers: Tensor) -> Tensor:
        if self.samples is None:
            return self.loss(output, self.targets)
        return self.loss(output, of_samples(self.targets, numbers.tolist(), samples=self.samples))


def has_structured_targets(seen: Observation) -> bool:
    """Whether the revealed targets are something other than class labels."""
    return isinstance(seen.labels, Mapping)


def with_known_targets(victim: Victim, seen: Observation) -> tuple[Victim, Observation]:
    """The same problem with the revealed targets inside the loss, and sample numbers in place of labels."""
    assert isinstance(seen.labels, Mapping)
    known = {name: value.to(victim.device) for name, value in seen.labels.items()}
    size = batch_size(seen)
    loss = OfKnownTargets(victim.loss, known, None if uses_whole_batch(seen.channel, size) else size)
    return replace(victim, loss=loss), replace(seen, labels=torch.arange(size, device=victim.device))
