"""Completes a batch from the images that were found in it."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core import Victim


def valid_range(victim: Victim, like: Tensor) -> tuple[Tensor, Tensor]:
    """The darkest and the lightest possible image (model space), in the type of ``like``."""
    dark, light = (
        victim.space.project(like.new_full((1, *victim.space.shape), bound)) for bound in (-torch.inf, torch.inf)
    )
    return dark, light


def batch_of(found: Tensor, size: int, victim: Victim) -> Tensor:
    """The found images (model space), filled up with grey ones to ``size``."""
    dark, light = valid_range(victim, found)
    return torch.cat([found, ((dark + light) / 2).expand(max(0, size - len(found)), *victim.space.shape)])
