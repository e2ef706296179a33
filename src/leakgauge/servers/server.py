"""The interface of a malicious server, and what all of them need."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core import Pixels, Victim
from leakgauge.errors import Inapplicable


class Server(Protocol):
    """Turns the agreed model into the one it sends. ``reads`` names the attack that reads the update.

    ``auxiliary`` are images (model space) that the server holds, if any.
    """

    @property
    def reads(self) -> str: ...

    def __call__(self, victim: Victim, /, *, auxiliary: Tensor | None = None, seed: int = 0) -> Victim: ...


def pixels_of(victim: Victim) -> Pixels:
    """The victim's images; refuses any other kind of input."""
    if not isinstance(victim.space, Pixels):
        raise Inapplicable("this server reads pixels from an update, but the model does not take images")
    return victim.space


def brightness(space: Pixels) -> tuple[Tensor, float]:
    """(w, c) with ⟨w, x⟩ + c = the mean of the image in [0, 1] that ``x`` (model space, flat) encodes."""
    low, high = space.bounds
    channels, *sides = space.shape
    mean = torch.tensor(space.mean, dtype=torch.float64).expand(channels)
    std = torch.tensor(space.std, dtype=torch.float64).expand(channels)
    area = sides[0] * sides[1]
    weight = (std / (high - low) / (channels * area)).repeat_interleave(area)
    return weight, float((mean.mean() - low) / (high - low))
