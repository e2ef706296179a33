"""Dropout draws masks that the adversary does not know; a replay without it is the best deterministic guess."""

from __future__ import annotations

import copy
from dataclasses import replace

from torch import nn

from leakgauge.core import Victim


def dropping_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that drop something in train mode: dropout, stochastic depth, dropout inside attention."""
    return tuple(name for name, module in model.named_modules() if _rate(module))


def without_dropout(victim: Victim) -> Victim:
    """The same victim with every drop rate at zero; batch normalisation stays in the victim's mode.

    A client that drops shares the gradient under one mask. The adversary, who does not know the mask, replays the mean
    of the masks. For the papers' setting (no dropout at all) make the victim itself of ``without_dropout(victim)``.
    """
    if not dropping_layers(victim.model):
        return victim
    model = copy.deepcopy(victim.model)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif _rate(module):
            setattr(module, "drop_prob", 0.0)  # noqa: B010 - torch types attributes as modules
    return replace(victim, model=model)


def _rate(module: nn.Module) -> float:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p
    if isinstance(module, nn.MultiheadAttention):
        return module.dropout
    rate = getattr(module, "drop_prob", 0.0)  # timm's and torchvision's stochastic depth
    return rate if isinstance(rate, float) else 0.0
