"""Attacks a float16 victim in float32: an adversary may compute in any number type."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.core import Observation, Signal, Victim

NOTE = "searched in float32: in the victim's float16 the squares of gradients become 0 and no step can be taken"


def too_narrow(victim: Victim) -> bool:
    """Whether the victim's number type cannot hold the squares of small gradients; bfloat16 has the range of float32."""
    return victim.dtype == torch.float16


def widen(victim: Victim, seen: Sequence[Observation]) -> tuple[Victim, list[Observation]]:
    """The victim with float32 weights, and the observations converted."""
    wide = replace(victim, model=copy.deepcopy(victim.model).float())
    return wide, [
        replace(
            one,
            signal=_signal(one.signal),
            buffers=None if one.buffers is None else _signal(one.buffers),
            near=None if one.near is None else _tensor(one.near),
            auxiliary=None if one.auxiliary is None else _tensor(one.auxiliary),
        )
        for one in seen
    ]


def _signal(signal: Signal) -> Signal:
    return {name: _tensor(value) for name, value in signal.items()}


def _tensor(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float16 else value
