"""The observed signal, checked against the victim once, before the first step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.core import Signal, Victim
from leakgauge.errors import BadInput


@dataclass(frozen=True, eq=False)
class Observed:
    """The target of a replay: tensors by name, on the victim's device, and their squared norms (computed once)."""

    signal: dict[str, Tensor]
    squares: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "squares", {n: torch.dot(t.flatten(), t.flatten()) for n, t in self.signal.items()})

    @classmethod
    def checked(cls, signal: Signal, victim: Victim) -> Observed:
        """Raises ``BadInput`` for an empty signal, unknown names, wrong shapes, NaN or Inf."""
        if not signal:
            raise BadInput("the observed signal is empty; nothing was shared, so there is nothing to match")
        parameters = victim.parameters()
        unknown = [name for name in signal if name not in parameters]
        if unknown:
            raise BadInput(
                f"the signal names {unknown[0]!r}, which is no trainable parameter of {victim.name}; does it come from another model?"
            )
        for name, value in signal.items():
            if value.shape != parameters[name].shape:
                raise BadInput(
                    f"the signal's {name} has shape {tuple(value.shape)}, the model's has {tuple(parameters[name].shape)}"
                )
            if not torch.isfinite(value).all():
                raise BadInput(
                    f"the signal's {name} holds NaN or Inf; the client's training has diverged or the file is damaged"
                )
        return cls({name: signal[name].detach().to(p) for name, p in parameters.items() if name in signal})
