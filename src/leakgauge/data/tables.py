"""Reads a table from a CSV file or a pandas data frame, and finds out which columns hold numbers and which categories."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.core.tables import Category, Column, Number, Table
from leakgauge.data.limits import refuse_size
from leakgauge.errors import BadInput

FEW_VALUES = 8
"""A column of whole numbers with at most so many different ones is read as categories, unless it is named as numbers."""
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""What stands for no value, in any case."""


@dataclass(frozen=True, eq=False)
class TableData:
    """``rows`` (N, columns) as a user sees them, ``labels`` (N,), their ``classes``, the ``space`` of the rows, and how many were
    ``dropped`` because a value was missing."""

    space: Table
    rows: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    dropped: int

    @property
    def x(self) -> Tensor:
        """The rows as a model takes them."""
        return self.space.encode(self.rows).float()


def read_table(
    source: Any, *, label: str, numbers: Sequence[str] = (), categories: Sequence[str] = (), header: Sequence[str] = ()
) -> TableData:
    """Rows and labels from ``source``: a CSV file with a header line (or the ``header`` given here), a pandas data frame, or a mapping of
    names to columns. ``label`` names the column that is predicted.

    A column is one of numbers if all its values are, and if they are not a few whole ones; ``numbers`` and ``categories`` name columns
    that are read as such in any case. Mean and standard deviation are those of the table. Rows with a missing value are dropped.

    >>> data = read_table({"age": [30, 41, 52], "sex": ["f", "m", "f"], "ill": ["no", "yes", "no"]}, label="ill", numbers=["age"])
    >>> [column.name for column in data.space.columns], data.labels.tolist(), data.classes
    (['age', 'sex'], [0, 1, 0], ('no', 'yes'))
    """
    table = _columns(source, header)
    for name in (label, *numbers, *categories):
        if name not in table:
            raise BadInput(f"the table has no column {name!r}; it has {', '.join(table)}")
    if both := set(numbers) & set(categories):
        raise BadInput(f"column {min(both)!r} is named among the numbers and among the categories; choose one")
    total = len(table[label])
    keep = [i for i in range(total) if all(column[i].lower() not in MISSING for column in table.values())]
    if len(keep) < 2:
        raise BadInput(f"the table needs at least 2 rows without a missing value, got {len(keep)} of {total}")
    table = {name: [column[i] for i in keep] for name, column in table.items()}
    outcome = table.pop(label)
    classes = tuple(sorted(set(outcome)))
    columns: list[Column] = []
    read: list[Tensor] = []
    for name, values in table.items():
        if (found := _read(name, values, name in numbers, name in categories)) is not None:
            columns.append(found[0])
            read.append(found[1])
    if not columns:
        raise BadInput("the table has no column with more than one value besides the label")
    places = {value: k for k, value in enumerate(classes)}
    labels = torch.tensor([places[value] for value in outcome])
    return TableData(Table(tuple(columns)), torch.stack(read, 1), labels, classes, total - len(keep))


def _columns(source: Any, header: Sequence[str]) -> dict[str, list[str]]:
    if isinstance(source, str | Path):
        return _csv(Path(source), header)
    if not isinstance(source, Mapping) and not hasattr(source, "columns"):
        raise BadInput(
            f"read_table takes a CSV file, a data frame or a mapping of columns, got {type(source).__name__}"
        )
    names = list(source) if isinstance(source, Mapping) else list(source.columns)
    found = {str(name): [str(value).strip() for value in source[name]] for name in names}
    if len({len(column) for column in found.values()}) != 1:
        raise BadInput("the columns of the table must be equally long, and there must be at least one")
    return found


def _csv(path: Path, header: Sequence[str]) -> dict[str, list[str]]:
    if not path.is_file():
        raise BadInput(f"{path} is no file; give a CSV file")
    refuse_size(path.stat().st_size * 8, path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = [[cell.strip() for cell in row] for row in csv.reader(stream, skipinitialspace=True) if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} is no CSV file in UTF-8: {error}") from error
    names = list(header) or (lines.pop(0) if lines else [])
    if len(set(names)) < len(names) or not all(names):
        raise BadInput(f"{path} needs different names in its header line, got {names}; or give header=")
    wrong = next((k for k, row in enumerate(lines) if len(row) != len(names)), None)
    if wrong is not None:
        raise BadInput(f"row {wrong + 1} of {path} has {len(lines[wrong])} cells, but there are {len(names)} columns")
    return {name: [row[k] for row in lines] for k, name in enumerate(names)}


def _read(name: str, values: list[str], number: bool, category: bool) -> tuple[Column, Tensor] | None:
    """The column and its values; None if all values are the same, which tells nothing."""
    if len(set(values)) < 2:
        return None
    parsed = None if category else _numbers(values)
    if number and parsed is None:
        raise BadInput(
            f"column {name!r} is named among the numbers, but holds {next(v for v in values if _number(v) is None)!r}"
        )
    if parsed is not None:
        whole = bool((parsed == parsed.round()).all())
        if number or not (whole and len(parsed.unique()) <= FEW_VALUES):
            low, high = (float(end) for end in parsed.aminmax())
            return Number(name, low, high, float(parsed.mean()), float(parsed.std()), whole), parsed
    kinds = sorted(set(values))
    places = {value: k for k, value in enumerate(kinds)}
    read = torch.tensor([float(places[value]) for value in values], dtype=torch.float64)
    shares = torch.nn.functional.one_hot(read.long(), len(kinds)).double()
    return Category(name, tuple(kinds), tuple(shares.mean(0).tolist()), tuple(shares.std(0).tolist())), read


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _numbers(values: list[str]) -> Tensor | None:
    parsed = [_number(value) for value in values]
    return None if None in parsed else torch.tensor(parsed, dtype=torch.float64)
