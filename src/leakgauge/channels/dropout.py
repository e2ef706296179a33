"""Dropout draws masks that the adversary does not know; a replay without it is the best deterministic guess."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import nn

from leakgauge.core import Victim, drop_attribute, drop_rate


def dropping_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that drop something in train mode: dropout, stochastic depth, dropout inside attention."""
    return tuple(name for name, module in model.named_modules() if drop_rate(module))


def without_dropout(victim: Victim) -> Victim:
    """The same victim with every drop rate at zero; batch normalisation stays in the victim's mode.

    A client that drops shares the gradient under one mask. The adversary, who does not know the mask, replays the mean
    of the masks. For the papers' setting (no dropout at all) make the victim itself of ``without_dropout(victim)``.
    """
    if not dropping_layers(victim.model):
        return victim
    model = copy.deepcopy(victim.model)
    for module in model.modules():
        if drop_rate(module):
            setattr(module, drop_attribute(module), 0.0)
    return replace(victim, model=model)
