"""A whole batch from the images that were found in it."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core import Victim


def batch_of(found: Tensor, size: int, victim: Victim) -> Tensor:
    """The images that were found (model space), and grey ones for those that were not, up to ``size``."""
    grey = victim.space.encode(torch.full((max(0, size - len(found)), *victim.space.shape), 0.5))
    return torch.cat([found, victim.to_input(grey)])
