"""Attack on rows of a table: relaxed columns, and many restarts pooled into one answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.core import Number, Observation, Reconstruction, Table, Use, Victim
from leakgauge.core.examples import example
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion import Adam, Cosine, Descent, FromSpace, Matching, Sign, infer_labels
from leakgauge.inversion.relaxed import Relaxed
from leakgauge.measures.table import pair_rows, vote_perplexity


@dataclass(frozen=True)
class TabLeak:
    """The attack made by :func:`tableak`: ``search`` with its restarts pooled."""

    search: Matching

    def uses(self) -> frozenset[Use]:
        return self.search.uses()

    def effort(self) -> tuple[str, int]:
        return "tableak", self.search.solver.steps

    def blind(self) -> TabLeak:
        """The same without the signal."""
        return replace(self, search=self.search.blind())

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        if not isinstance(victim.space, Table):
            raise Inapplicable("tableak needs a victim that takes rows of a table")
        found = self.search(victim, seen, seed=seed)
        x, confidence = pool(found.candidates, found.x, victim.space)
        count = len(found.candidates)
        notes = (*found.notes, f"{count} restarts paired row by row and pooled") if count > 1 else found.notes
        return replace(found, x=x, confidence=confidence, made_by=repr(self), notes=notes)


def pool(candidates: Tensor, best: Tensor, space: Table) -> tuple[Tensor, Tensor]:
    """One batch (B, entries) from those of all restarts, ``candidates`` (R, B, entries), and how far they agree, (B, columns).

    A batch has no order, so the rows of every restart are first paired with those of the ``best`` one. The answer is the median over the
    restarts, entry by entry. The agreement of a cell is exp(−H) of the restarts' votes: 1 if all say the same, 1/R if each says
    something else. Numbers within a tolerance of the answer are one vote.

    Ref: Vero et al. 2023, public code — pooled ensembling, and entropy over the ensemble
    """
    target = space.decode(best).cpu()
    paired = torch.stack(
        [one[pair_rows(space.decode(one).cpu(), target, space.slack).to(one.device)] for one in candidates]
    )
    likely = space.likely(paired.double())
    x = space.from_likely(likely.median(0).values)
    answer = space.decode(x)
    cells: list[Tensor] = []
    for k, (column, place) in enumerate(zip(space.columns, space.places, strict=True)):
        if isinstance(column, Number):
            off = likely[:, :, place.start] - answer[:, k]
            vote = (off / (2 * column.slack)).round() if column.slack else off
            same = (vote[:, None] == vote[None]).double().mean(1)
            cells.append(same.log().mean(0).exp())
        else:
            cells.append(1 / vote_perplexity(likely[:, :, place].mean(0)))
    return x.to(best), torch.stack(cells, -1)


@example("table", steps=60, restarts=3)
@checked
def tableak(*, lr: float = 0.06, steps: int = 1500, restarts: int = 30) -> TabLeak:
    """Vero et al. 2023 (TabLeak): direction of the gradient over relaxed columns, and the median of ``restarts`` searches.

        ẑ = argmin_z 1 − cos(∇θ loss(f(relax(z)), ŷ), g*);  x̂ = median of relax(ẑ) over the restarts, rows paired

    Categories are softmax of free numbers, numbers are bounded by a sigmoid; ``lr`` is the step of Adam, which sees only the sign of the
    gradient. ``confidence`` of the result is how far the restarts agree on each cell, which the adversary sees too.

    Deviations: labels are inferred instead of given or brute-forced; each restart keeps the rows of its lowest objective, not the last;
    the confidence is 1 divided by the perplexity of the votes for categories and for numbers alike, where the paper takes the
    entropy of a normal distribution for numbers.

    Ref: Vero et al. 2023, public code — TabLeak
    """
    return TabLeak(
        Matching(
            objective=Cosine(),
            labels=infer_labels(),
            start=FromSpace(),
            solver=Relaxed(Descent(Adam(lr), steps, gradient=(Sign(),), project=False)),
            restarts=restarts,
            name="tableak",
        )
    )
