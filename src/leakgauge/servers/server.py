"""What a malicious server is, and what all of them need."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core import Pixels, Victim
from leakgauge.errors import Inapplicable


class Server(Protocol):
    """From the agreed model it makes the one that it sends. ``reads`` names the attack that reads what comes back.

    ``auxiliary`` are images of the kind (model space) that the server holds, where it holds some.
    """

    @property
    def reads(self) -> str: ...

    def __call__(self, victim: Victim, /, *, auxiliary: Tensor | None = None, seed: int = 0) -> Victim: ...


def pixels_of(victim: Victim) -> Pixels:
    """The victim's images; refuses any other kind of input."""
    if not isinstance(victim.space, Pixels):
        raise Inapplicable("this server reads pixels off an update, and the model takes no images")
    return victim.space


def brightness(space: Pixels) -> tuple[Tensor, float]:
    """(w, c) with ⟨w, x⟩ + c = the mean of the image in [0, 1] that ``x`` (model space, flat) shows."""
    low, high = space.bounds
    channels, *sides = space.shape
    mean = torch.tensor(space.mean, dtype=torch.float64).expand(channels)
    std = torch.tensor(space.std, dtype=torch.float64).expand(channels)
    area = sides[0] * sides[1]
    weight = (std / (high - low) / (channels * area)).repeat_interleave(area)
    return weight, float((mean.mean() - low) / (high - low))
