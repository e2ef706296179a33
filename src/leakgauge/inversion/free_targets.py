"""Targets that an attack searches together with the sample: classes, several labels, or a number to regress on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import Inapplicable
from leakgauge.inversion.labels import class_count, has_several_labels

REGRESSION = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
REGRESSION_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


@dataclass(frozen=True)
class FreeTargets:
    """Free numbers of ``shape`` for each sample, and the link that turns them into targets: softmax for one class, sigmoid for several
    labels, nothing for a number to regress on."""

    shape: tuple[int, ...]
    link: Literal["softmax", "sigmoid", "identity"]

    def __call__(self, free: Tensor) -> Tensor:
        return {"softmax": lambda z: z.softmax(-1), "sigmoid": torch.sigmoid, "identity": lambda z: z}[self.link](free)

    def found(self, free: Tensor) -> Tensor:
        """The targets as a result states them: class numbers, labels of 0 and 1, or the numbers themselves."""
        if self.link == "softmax":
            return free.argmax(-1)
        return (free > 0).to(free) if self.link == "sigmoid" else free


def of_no_classes(victim: Victim) -> FreeTargets | None:
    """For losses of several labels, and of regression with one output; None where targets are, or may be, classes.

    A regression with several outputs has the loss of some classifiers, so it is not told from one: reveal its targets.
    """
    several = has_several_labels(victim.loss)
    if not several and not (isinstance(victim.loss, REGRESSION_MODULES) or victim.loss in REGRESSION):
        return None
    with torch.no_grad(), private_randomness(0, victim.device):
        output = victim(victim.to_input(victim.space.start(2, torch.Generator().manual_seed(0))))
    if not isinstance(output, Tensor):
        raise Inapplicable("the model does not return one tensor, so the shape of its targets is unknown; reveal them")
    if several:
        return FreeTargets(tuple(output.shape[1:]), "sigmoid")
    return FreeTargets(tuple(output.shape[1:]), "identity") if output[0].numel() == 1 else None


def free_targets(victim: Victim) -> FreeTargets:
    """What is searched for the targets of this victim."""
    return of_no_classes(victim) or FreeTargets((class_count(victim),), "softmax")
