"""Several learning rates of one attack in one batch: rows of a search that move at a pace of their own.

A few images leave most of a GPU idle, and an attack needs seconds before its first recorded step. So settings are tried together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.inversion import Adam, AdamW
from leakgauge.inversion.solvers import Schedule

Pace = tuple[float, Schedule]
"""A learning rate and how it falls."""


class RowPaces:
    """Optimizer and schedule of a descent in one: row r takes the steps of ``optimizer`` with the pace ``paces[r]``.

    The optimizer works with a rate of 1, and its step is stretched: x ← x + rate_r · (optimizer(x) − x). For Adam and AdamW, whose steps
    are proportional to the rate, that is the same.
    """

    lr = 1.0

    def __init__(self, optimizer: Adam | AdamW, paces: Sequence[Pace]) -> None:
        self.optimizer, self.paces = replace(optimizer, lr=1.0), paces
        self.rates = torch.ones(len(paces))

    def make(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        if any(len(v) != len(self.paces) for v in variables):
            raise RuntimeError(f"{len(self.paces)} rows do not fit into memory together; try fewer settings at once")
        self.rates = self.rates.to(variables[0].device)
        return Stretched(self.optimizer.make(variables), variables, self.rates)  # pyright: ignore[reportReturnType]  # all that is asked

    def __call__(self, progress: float, /) -> float:
        """Asked before every step, outside of what is recorded."""
        self.rates.copy_(torch.tensor([rate * schedule(progress) for rate, schedule in self.paces]))
        return 1.0


class Stretched:
    """An optimizer whose step is stretched row by row, x ← x + rate_r · (inner(x) − x), with as much of one as a descent asks for."""

    def __init__(self, inner: torch.optim.Optimizer, variables: list[Tensor], rates: Tensor) -> None:
        self.inner, self.variables, self.rates = inner, variables, rates
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self) -> None:
        before = [v.detach().clone() for v in self.variables]
        self.inner.step()
        with torch.no_grad():
            for old, new in zip(before, self.variables, strict=True):
                new.copy_(torch.lerp(old, new, self.rates.view(-1, *[1] * (new.dim() - 1))))
