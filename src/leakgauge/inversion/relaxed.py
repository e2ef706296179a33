"""A solver for tables: searches free numbers that the space turns into valid rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.core import Space, Table
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.solvers import Descent, Losses, Mover, Rows


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

    def begin(
        self,
        x: Tensor,
        logits: Tensor | None,
        losses: Losses,
        space: Space,
        draws: Draws | None = None,
        labels: Tensor | None = None,
    ) -> Mover:
        if not isinstance(space, Table):
            raise Inapplicable("the relaxation of columns needs a victim that takes rows of a table")
        return _RelaxedMover(self, x, logits, losses, space, draws or Draws.of(len(x)))


class _RelaxedMover:
    def __init__(
        self, of: Relaxed, x: Tensor, logits: Tensor | None, losses: Losses, space: Table, draws: Draws
    ) -> None:
        self.losses, self.space = losses, space
        with torch.no_grad():
            z = space.free(x.detach()).requires_grad_()
        self.mover = replace(of.descent, project=False).begin(z, logits, self._of_free, space, draws)

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
