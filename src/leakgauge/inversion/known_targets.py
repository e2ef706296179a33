"""Targets with a structure, such as boxes: where they were revealed, the replay takes them as given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leakgauge.core import Loss, Observation, Victim
from leakgauge.inversion.labels import batch_size


@dataclass(frozen=True, eq=False)
class OfKnownTargets:
    """The victim's loss at targets that are known; whatever is passed in their place is not looked at."""

    loss: Loss
    targets: Mapping[str, Tensor]

    def __call__(self, output: Any, _: Any) -> Tensor:
        return self.loss(output, self.targets)


def structured(seen: Observation) -> bool:
    """Whether targets were revealed that are no class labels."""
    return isinstance(seen.labels, Mapping)


def with_known_targets(victim: Victim, seen: Observation) -> tuple[Victim, Observation]:
    """The same problem with the revealed targets inside the loss, and class labels in their place that mean nothing."""
    assert isinstance(seen.labels, Mapping)
    known = {name: value.to(victim.device) for name, value in seen.labels.items()}
    nothing = torch.zeros(batch_size(seen), dtype=torch.long, device=victim.device)
    return replace(victim, loss=OfKnownTargets(victim.loss, known)), replace(seen, labels=nothing)
