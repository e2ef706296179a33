"""What a record holds of rows of a table, side by side with what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from leakgauge.audit.tables import TableResult, TableVerdict
from leakgauge.core import Number, Table
from leakgauge.measures.table import right_cells

SHOWN = 32
"""Rows of a batch whose cells are kept."""


@dataclass(frozen=True)
class Row:
    """A true row and what was found for it, as text, column by column; ``right`` says of each cell whether it counts as found, ``sure`` how
    sure the attack is of it (empty if it does not say)."""

    truth: tuple[str, ...]
    found: tuple[str, ...]
    right: tuple[bool, ...]
    sure: tuple[float, ...] = ()


@dataclass(frozen=True)
class TableFacts:
    """``cells`` and ``null`` are the shares of right cells of each row, of the attack and of the best of ``guesses``. ``by_column`` is the
    share of rows in which a column is right. ``nearest`` is what the nearest public row would score, if the truth chose it; ``surest`` the
    share of right cells among the quarter of which the attack is most sure; None where there is neither.
    """

    verdict: TableVerdict
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    cells: tuple[float, ...]
    null: tuple[float, ...]
    guesses: Mapping[str, float]
    by_column: Mapping[str, float]
    nearest: float | None = None
    surest: float | None = None


def table_facts(result: TableResult, space: Table) -> TableFacts:
    """The facts of a result, with its first rows as text."""
    truth, found = result.rows["truth"][:SHOWN], result.rows["reconstruction"][:SHOWN]
    right, sure = right_cells(found, truth, space.slack).tolist(), result.rows.get("confidence")
    words = [[_written(row, space) for row in rows] for rows in (truth, found)]
    rows = tuple(
        Row(own, guess, tuple(right[k]), () if sure is None else tuple(round(v, 3) for v in sure[k].tolist()))
        for k, (own, guess) in enumerate(zip(*words, strict=True))
    )
    return TableFacts(
        result.verdict,
        tuple(column.name for column in space.columns),
        rows,
        result.scores.cells,
        result.null.cells,
        {name: one.accuracy for name, one in result.guesses.items()},
        dict(result.scores.columns),
        None if result.nearest is None else result.nearest.accuracy,
        result.scores.sure,
    )


def _written(row: Tensor, space: Table) -> tuple[str, ...]:
    cells = zip(space.columns, row.tolist(), strict=True)
    return tuple(f"{value:.6g}" if isinstance(column, Number) else column.values[int(value)] for column, value in cells)
