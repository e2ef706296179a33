"""One attack on one batch of rows of a table, from the private data to a verdict, as :mod:`leakgauge.audit.evaluate` does for images."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Unpack

import torch
from torch import Tensor

from leakgauge.attacks import tables
from leakgauge.audit.cause import Cause
from leakgauge.audit.evaluate import assumed, certified_samples, observe
from leakgauge.audit.null import null_run
from leakgauge.audit.verdict import SHARE_FOR_FEASIBLE, Check, Outcome, Verdict, Way, kind_of
from leakgauge.core import (
    Assumption,
    Attack,
    Category,
    Channel,
    Kind,
    Reconstruction,
    Sent,
    Table,
    Victim,
)
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.measures.table import nearest_rows, pair_rows, right_cells, typical_row


@checked(nan=True)
@dataclass(frozen=True)
class TableScores:
    """``cells``: for each true row the share of its columns that are right, in the order of the truth. ``exact`` is 1.0 where all are.
    ``columns`` maps each column to the share of rows in which it is right. ``sure`` is the share of right cells among the quarter of which
    the attack is most sure; None if it does not say how sure it is.
    """

    cells: tuple[float, ...]
    exact: tuple[float, ...]
    columns: Mapping[str, float]
    sure: float | None = None

    @property
    def accuracy(self) -> float:
        """The share of all cells that are right."""
        return sum(self.cells) / len(self.cells)

    @property
    def exact_rate(self) -> float:
        """The share of rows in which every cell is right."""
        return sum(self.exact) / len(self.exact)


@checked
def score_table(found: Reconstruction, x: Tensor, *, space: Table) -> TableScores:
    """Scores of the chosen reconstruction against the true rows ``x`` (model space), paired one to one by the cells that are right."""
    guesses, truths = space.decode(found.x).cpu(), space.decode(x).cpu()
    order = pair_rows(guesses, truths, space.slack)
    right = right_cells(guesses[order], truths, space.slack)
    sure = None
    if found.confidence is not None:
        confidence = found.confidence.cpu()[order].flatten()
        sure = float(right.flatten()[confidence.topk(max(1, len(confidence) // 4)).indices].double().mean())
    return TableScores(
        cells=tuple(right.double().mean(1).tolist()),
        exact=tuple(right.all(1).double().tolist()),
        columns=dict(zip((c.name for c in space.columns), right.double().mean(0).tolist(), strict=True)),
        sure=sure,
    )


@dataclass(frozen=True)
class TableCheck:
    """The share of right cells of a row must be at least ``margin``, or at least ``margin`` above the best guess without an update."""

    margin: float
    above: Literal["zero", "null"]

    def passes(self, row: int, attack: TableScores, null: TableScores) -> bool:
        bar = null.cells[row] if self.above == "null" else 0.0
        return attack.cells[row] >= bar + self.margin - 1e-9


RECONSTRUCTED = (TableCheck(0.9, above="zero"), TableCheck(0.2, above="null"))
"""Nine of ten cells. The margins are choices; nobody was asked whether they recognise a person."""
READ = (TableCheck(0.2, above="null"),)
"""Clearly more than anyone would guess."""


@dataclass(frozen=True)
class TableVerdict:
    """The outcome and the facts that decided it: of ``rows`` in the batch, ``exact`` are right in every cell, ``reconstructed`` pass every
    check of ``RECONSTRUCTED``, ``read`` those of ``READ``, and ``certified`` were proven by the attack itself, without the truth.
    A negative is always *inconclusive*: tables have no truth test and no control yet.
    """

    outcome: Outcome
    kind: Kind
    rows: int
    exact: int
    reconstructed: int
    read: int
    certified: int = 0

    def plain(self) -> Verdict:
        """The same as the verdict on a batch of any kind: a row that is only read counts as glimpsed, by its cells."""
        only_read = self.read - min(self.read, self.reconstructed)
        missed = None if self.outcome is Outcome.FEASIBLE else Check("cells", RECONSTRUCTED[0].margin, above="zero")
        return Verdict(
            self.outcome,
            self.kind,
            self.rows,
            self.reconstructed,
            glimpsed={Way.CELLS: only_read} if only_read else {},
            missed=missed if self.outcome.leaks else Check("cells", READ[0].margin, above="null"),
            certified=self.certified,
            cause=None if self.outcome.leaks else Cause.UNTESTED,
            unit="row",
        )


def judge_table(
    scores: TableScores, null: TableScores, assumptions: Sequence[Assumption] = (), *, certified: int = 0
) -> TableVerdict:
    """Applies the table of checks row by row; ``null`` is scored on the same truths in the same order."""
    count = len(scores.cells)
    whole = sum(all(check.passes(k, scores, null) for check in RECONSTRUCTED) for k in range(count))
    read = sum(all(check.passes(k, scores, null) for check in READ) for k in range(count))
    if whole >= SHARE_FOR_FEASIBLE * count:
        outcome = Outcome.FEASIBLE
    elif whole or read:
        outcome = Outcome.PARTIAL
    else:
        outcome = Outcome.INCONCLUSIVE
    return TableVerdict(outcome, kind_of(assumptions), count, int(sum(scores.exact)), whole, read, certified)


@checked(nan=True)
@dataclass(frozen=True, eq=False)
class TableResult:
    """What an attack on a table came to, and what it is measured against.

    ``scores`` are of the attack, ``null`` of the best guess without the update, row by row: ``guesses`` maps the name of each to its
    scores.
    ``nearest`` is what the nearest public row would score, chosen by the truth, which no adversary has; None without public rows.
    """

    verdict: TableVerdict
    scores: TableScores
    null: TableScores
    guesses: Mapping[str, TableScores]
    nearest: TableScores | None
    reconstruction: Reconstruction
    assumptions: tuple[Assumption, ...]
    rows: Mapping[str, Tensor] = field(default_factory=dict, repr=False)


@checked
@plain_defaults()
def evaluate_table(
    victim: Victim,
    channel: Channel,
    x: Tensor,
    y: Tensor,
    *,
    attack: Attack | None = None,
    public: Tensor | None = None,
    **sent: Unpack[Sent],
) -> TableResult:
    """Shares the rows ``x`` (model space) with targets ``y`` through ``channel``, attacks what was sent, and judges what the attack found.

    ``attack`` is :func:`~leakgauge.attacks.tables` unless another is named. The guesses to beat are the attack's own null run, the row
    of means and most frequent values by which the columns are scaled, which are public with the model, and rows drawn by these.
    ``public`` holds other rows of the same kind (as a user sees them, (N, columns)): then also their typical row, and rows drawn from
    them. All else is for :func:`~leakgauge.core.share`: ``defenses``, ``reveal`` (what the attack knows beyond the signal) and ``seed``.

    >>> from leakgauge import testing
    >>> from leakgauge.channels import Gradient
    >>> victim, x, y = testing.tiny_case("table")
    >>> print(evaluate_table(victim, Gradient(), x, y).verdict.outcome.label)
    feasible
    """
    space = victim.space
    if not isinstance(space, Table):
        raise BadInput("evaluate_table takes victims that read rows of a table; use evaluate for images")
    if public is not None:
        space.refuse_rows(public)
        if len(public) < len(x):
            raise BadInput(
                f"evaluate_table needs at least as many public rows as private ones, got {len(public)} for {len(x)}"
            )
    seen, seed = observe(victim, channel, x, y, **sent), sent.get("seed", 0)
    attack = tables() if attack is None else attack
    found = attack(victim, seen, seed=seed)
    truths = space.decode(x).cpu()
    guesses = {
        name: _scored(space.encode(rows), x, space) for name, rows in _guesses(space, len(x), public, seed).items()
    }
    with suppress(Inapplicable):  # a closed form refuses the noise of a null run
        guesses["null run"] = score_table(null_run(attack, victim, seen, seed=seed), x, space=space)
    null = _best(list(guesses.values()))
    nearest = (
        None if public is None else _scored(space.encode(nearest_rows(public.double(), truths, space.slack)), x, space)
    )
    scores, known = score_table(found, x, space=space), assumed(attack, seen)
    order = pair_rows(space.decode(found.x).cpu(), truths, space.slack)
    shown = {"truth": truths, "reconstruction": space.decode(found.x).cpu()[order]}
    if found.confidence is not None:
        shown["confidence"] = found.confidence.cpu()[order]
    return TableResult(
        judge_table(scores, null, known, certified=sum(certified_samples(found))),
        scores,
        null,
        guesses,
        nearest,
        found,
        known,
        shown,
    )


def _guesses(space: Table, count: int, public: Tensor | None, seed: int) -> dict[str, Tensor]:
    """Rows that anyone could guess without the update."""
    rng = torch.Generator().manual_seed(seed)
    own = {"means of the columns": space.typical().expand(count, -1), "drawn by the columns": space.draw(count, rng)}
    if public is None:
        return own
    categories = torch.tensor([isinstance(column, Category) for column in space.columns])
    typical = typical_row(public.double(), categories).expand(count, -1)
    drawn = public.double()[torch.randperm(len(public), generator=rng)[:count]]
    return {**own, "typical row": typical, "drawn rows": drawn}


def _scored(x: Tensor, truth: Tensor, space: Table) -> TableScores:
    guess = Reconstruction.single(x, None, made_by="guess", began=time.perf_counter())
    return score_table(guess, truth, space=space)


def _best(nulls: Sequence[TableScores]) -> TableScores:
    """The best of several guesses, row by row and column by column."""
    return TableScores(
        cells=tuple(map(max, zip(*(one.cells for one in nulls), strict=True))),
        exact=tuple(map(max, zip(*(one.exact for one in nulls), strict=True))),
        columns={name: max(one.columns[name] for one in nulls) for name in nulls[0].columns},
    )
