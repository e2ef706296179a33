"""Dropout uses masks that the adversary does not know; a replay without dropout is the best deterministic guess."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leakgauge.core import Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.core.running import drop_attribute, drop_rate


def dropping_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that drop something in train mode: dropout, stochastic depth, dropout inside attention."""
    return tuple(name for name, module in model.named_modules() if drop_rate(module))


def without_dropout(victim: Victim) -> Victim:
    """The same victim with every drop rate at zero; batch normalisation stays in the victim's mode.

    A client with dropout shares the gradient under one mask. The adversary does not know the mask and replays the mean
    of all masks. For the papers' setting (no dropout at all) attack ``without_dropout(victim)`` itself.
    """
    if not dropping_layers(victim.model):
        return victim
    model = copy.deepcopy(victim.model)
    for module in model.modules():
        if drop_rate(module):
            setattr(module, drop_attribute(module), 0.0)
    return replace(victim, model=model)


def draws_at_random(victim: Victim) -> bool:
    """Whether two passes of the same noise differ: such a model drops values in its own code, which has no rate to set to 0."""
    noise = victim.to_input(victim.space.start(4, torch.Generator().manual_seed(0)))
    found = []
    for seed in range(2):
        with torch.no_grad(), private_randomness(seed, victim.device):
            found.append([value for value in tree_leaves(victim(noise)) if isinstance(value, Tensor)])
    pairs = zip(*found, strict=True)  # a GPU may add in another order
    return any(not torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True) for one, other in pairs)
