"""Whole weights that travelled in 16 bits: how much of what seems to have changed is the rounding alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from leakgauge.core import Assumption, Signal
from leakgauge.errors import BadInput

NOTHING_ELSE = 0.9
"""A share of the rounding above which an update is refused: the gradient read from it has a cosine below 0.44 to the true one."""


def rounding_told(sent: Signal, known: Mapping[str, Tensor], *, source: str) -> tuple[Assumption, ...]:
    """What must be said of new weights ``sent`` beside the ``known`` ones they came from; nothing where they have 32 bits.

    A weight w rounded to the nearest number of a type is off by an error spread evenly over one step u(w) of that type, with
    the mean square u² / 12, whatever the training did. Where the known weights are of that type too, the client may have
    trained in it, and the error cannot be told from what the weights say.
    """
    kind = next((t for t in (torch.bfloat16, torch.float16) if _exact(sent.values(), t)), None)
    if kind is None:
        return ()
    name = str(kind).removeprefix("torch.")
    if _exact((known[n] for n in sent), kind):
        return (Assumption(f"the weights came in {name}: changes below its steps are lost", "deployable"),)
    rounding = sum(float((_step(value, kind) ** 2 / 12).sum()) for value in sent.values()) ** 0.5
    away = sum(float((value - known[n]).double().square().sum()) for n, value in sent.items()) ** 0.5
    share = rounding / away if away else 0.0
    if share > NOTHING_ELSE:
        raise BadInput(
            f"{source} holds weights in {name}, and what changed in them is rounding; save them in 32 bits, or their difference"
        )
    said = f"the weights came in {name}: about {share:.0%} of the length of what changed is rounding"
    return (Assumption(said, "deployable"),)


def _exact(values: Iterable[Tensor], kind: torch.dtype) -> bool:
    """Whether all values are numbers of ``kind``, in whatever type they are held."""
    return all(bool((value == value.to(kind).to(value)).all()) for value in values)


def _step(value: Tensor, kind: torch.dtype) -> Tensor:
    """Distance from each value to the next number of ``kind``; 0 where the value is 0, which no rounding has made."""
    _, exponent = torch.frexp(value.double().abs())
    step = torch.finfo(kind).eps * torch.exp2(exponent.double() - 1)
    return torch.where(value == 0, 0.0, step)
