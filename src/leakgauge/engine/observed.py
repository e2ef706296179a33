"""The observed signal, checked against the victim once, before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.channels.rows import as_rows
from leakgauge.core import Signal, Victim
from leakgauge.errors import BadInput, Inapplicable


@dataclass(frozen=True, eq=False)
class Observed:
    """The target of a replay: tensors by name, on the victim's device, and their squared norms (computed once).

    Either one observation for all rows, or with ``per_row`` one per row, as tensors of shape (R, *shape).
    """

    signal: dict[str, Tensor]
    per_row: bool = False
    squares: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        rows = {n: as_rows(t if self.per_row else t[None]) for n, t in self.signal.items()}
        squares = {n: t.square().sum(1) for n, t in rows.items()}
        object.__setattr__(self, "squares", squares if self.per_row else {n: t[0] for n, t in squares.items()})

    def square(self, weights: Mapping[str, float]) -> Tensor:
        """Σ_n w_n ‖g*_n‖², a scalar, or (R,) if each row has its own observation."""
        return torch.stack([w * self.squares[n] for n, w in weights.items()]).sum(0)

    def entries(self, name: str) -> int:
        """The size of one row's tensor of this name."""
        tensor = self.signal[name]
        return tensor.numel() // len(tensor) if self.per_row else tensor.numel()

    def take(self, rows: Sequence[int] | slice | Tensor) -> Observed:
        """The observation of some rows."""
        if not self.per_row:
            return self
        return Observed({n: t[rows] for n, t in self.signal.items()}, per_row=True)

    @classmethod
    def stack(cls, many: Sequence[Observed]) -> Observed:
        """One row per observation; all must have the same tensors."""
        names = list(many[0].signal)
        if any(list(one.signal) != names for one in many):
            raise BadInput("observations matched together must have the same tensors; attack them one by one")
        return cls({n: torch.stack([one.signal[n] for one in many]) for n in names}, per_row=True)

    @classmethod
    def check(cls, signal: Signal, victim: Victim, like: Signal | None = None) -> Observed:
        """Raises ``Inapplicable`` for an empty signal, ``BadInput`` for unknown names, wrong shapes, NaN or Inf.

        ``like`` is the expected signal; by default it has the names and shapes of the victim's parameters.
        """
        if not signal:
            raise Inapplicable("the observed signal is empty, so there is nothing to match")
        expected = victim.parameters() if like is None else like
        kind = "trainable parameter" if like is None else "tensor at this cut"
        unknown = [name for name in signal if name not in expected]
        if unknown:
            raise BadInput(
                f"the signal has {unknown[0]!r}, which is not a {kind} of {victim.name}; does it come from another model?"
            )
        for name, value in signal.items():
            if not isinstance(value, Tensor):
                raise BadInput(
                    f"the signal's {name} is {value!r:.40} and not a tensor; leave out what was not shared, such as a parameter without "
                    "a gradient"
                )
            if value.shape != expected[name].shape:
                raise BadInput(
                    f"the signal's {name} has shape {tuple(value.shape)}, but the model's has {tuple(expected[name].shape)}"
                )
            if not torch.isfinite(value).all():
                raise BadInput(
                    f"the signal's {name} holds NaN or Inf; the client's training has diverged or the file is damaged"
                )
        return cls({name: signal[name].detach().to(p) for name, p in expected.items() if name in signal})
