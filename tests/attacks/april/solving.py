"""One image attacked in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import april_closed_form
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.measures.image import psnr

ALL = "everything is recovered"


class Solved(NamedTuple):
    """PSNR of the reconstruction in dB, what was predicted, and the attack's notes."""

    psnr: float
    predicted: str
    notes: tuple[str, ...]


def solve(
    model: nn.Module,
    shape=(1, 12, 12),
    *,
    loss=F.cross_entropy,
    y=None,
    mode="eval",
    channel=None,
    defenses=(),
    image=None,
    dtype=torch.float64,
    **options,
) -> Solved:
    """The attack with ``options`` on one image, by default a random one."""
    space = Pixels(shape, mean=(0.4,), std=(0.3,))
    victim = Victim(model.to(dtype), space, loss=loss, mode=mode)
    if image is None:
        image = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    image, target = image.to(dtype), torch.tensor([1]) if y is None else y
    seen = share(victim, channel or Gradient(), space.encode(image), target, defenses=list(defenses))
    result = april_closed_form(**options)(victim, seen)
    return Solved(float(psnr(space.decode(result.x), image)), dict(result.stated)["predicted"], result.notes)
