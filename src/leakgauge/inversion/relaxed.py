"""A solver for tables: searches free numbers that the space turns into valid rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.core import Table
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.solvers import Descent, Mover, Moving, Rows


@dataclass(frozen=True)
class Relaxed:
    """``descent`` over free numbers z of the candidates x = relax(z): numbers stay within their bounds, categories are shares.

    Ref: Vero et al. 2023, public code — softmax relaxation of the categories
    """

    descent: Descent = field(default_factory=Descent)

    @property
    def steps(self) -> int:
        return self.descent.steps

    @property
    def together(self) -> bool:
        return True

    def begin(self, given: Moving, /) -> Mover:
        if not isinstance(given.space, Table):
            raise Inapplicable("the relaxation of columns needs a victim that takes rows of a table")
        return _RelaxedMover(self, given, given.space)


class _RelaxedMover:
    def __init__(self, of: Relaxed, given: Moving, space: Table) -> None:
        self.losses, self.space = given.losses, space
        with torch.no_grad():
            z = space.free(given.x.detach()).requires_grad_()
        self.mover = replace(of.descent, project=False).begin(replace(given, x=z, losses=self._of_free))

    @property
    def note(self) -> str:
        return self.mover.note

    def _of_free(self, z: Tensor, logits: Tensor | None, rows: Rows) -> Tensor:
        return self.losses(self.space.relax(z), logits, rows)

    def __call__(self, number: int, /) -> None:
        self.mover(number)

    def judge(self) -> None:
        self.mover.judge()

    def keep(self, count: int, best: Tensor) -> None:
        raise BadInput("successive halving works on the candidates themselves; use it with Descent")
