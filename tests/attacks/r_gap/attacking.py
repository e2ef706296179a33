"""One image attacked by R-GAP."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from leakgauge.attacks import r_gap
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share

SPACE = Pixels((2, 8, 8), mean=(0.5, 0.4), std=(0.3, 0.2))


def image(seed=0, space=SPACE):
    return space.encode(torch.rand(1, *space.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def attacked(model, x, y=2, *, channel=None, defenses=(), space=SPACE, loss=F.cross_entropy, **options):
    victim = Victim(model, space, loss=loss)
    seen = share(victim, channel or Gradient(), x, torch.as_tensor(y).view(-1), defenses=defenses)
    return r_gap(**options)(victim, seen)
