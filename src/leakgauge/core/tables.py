"""Rows of a table as what a victim takes: numbers, and categories as one entry per value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked

TOLERANCE = 0.319
"""By how many standard deviations of its column a number may be off and still count as right. An interval of that half width around
the mean of a normal column holds a quarter of the values.

Ref: Vero et al. 2023, public code — tolerance of continuous features
"""

MOST_ENTRIES = 1 << 20
"""Of one row, as the model takes it."""


@checked
@dataclass(frozen=True)
class Number:
    """A column of numbers from ``low`` to ``high``. The model sees ``(value - mean) / std``.

    ``whole`` numbers are rounded when they are read back. A guess is right if it is within ``tolerance`` (default: 0.319 · std).
    """

    name: str
    low: float
    high: float
    mean: float = 0.0
    std: float = 1.0
    whole: bool = False
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise BadInput(f"column {self.name!r} needs finite bounds with low < high, got {self.low} and {self.high}")
        if not (self.std > 0 and math.isfinite(self.std) and math.isfinite(self.mean)):
            raise BadInput(
                f"column {self.name!r} needs a finite mean and a positive std, got {self.mean} and {self.std}"
            )
        if self.tolerance is not None and not self.tolerance >= 0:
            raise BadInput(f"column {self.name!r} needs a tolerance of at least 0, got {self.tolerance}")

    @property
    def width(self) -> int:
        return 1

    @property
    def slack(self) -> float:
        """How far a right guess may be off."""
        return TOLERANCE * self.std if self.tolerance is None else self.tolerance


@checked
@dataclass(frozen=True)
class Category:
    """A column with one of ``values``. The model sees one entry per value, 1 for the right one and 0 for the others, each minus ``mean``
    and divided by ``std`` (empty: as they are)."""

    name: str
    values: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for field in ("values", "mean", "std"):  # lists are welcome
            object.__setattr__(self, field, tuple(getattr(self, field)))
        if len(self.values) < 2 or len(set(self.values)) < len(self.values):
            raise BadInput(f"column {self.name!r} needs at least 2 different values, got {len(set(self.values))}")
        for field in ("mean", "std"):
            if len(getattr(self, field)) not in (0, len(self.values)):
                raise BadInput(
                    f"column {self.name!r} needs {len(self.values)} values of {field}, got {len(getattr(self, field))}"
                )
        if self.std and min(self.std) <= 0:
            raise BadInput(f"column {self.name!r} needs a positive std, got {min(self.std)}")

    @property
    def width(self) -> int:
        return len(self.values)

    @property
    def slack(self) -> float:
        """How far the number of the value may be off: not at all."""
        return 0.0


Column = Number | Category


@checked
@dataclass(frozen=True)
class Table:
    """Rows with the given ``columns``. As a user sees it, a row holds one number per column: the value itself, or the place of the category
    among its values. The model takes one entry per number and one per value of a category.

    >>> space = Table((Number("age", 0, 100, mean=40, std=20), Category("sex", ("f", "m"))))
    >>> space.encode(torch.tensor([[60.0, 1.0]])).tolist()
    [[1.0, 0.0, 1.0]]
    >>> space.decode(torch.tensor([[1.0, 0.3, 0.9]])).tolist()
    [[60.0, 1.0]]
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [column.name for column in self.columns]
        if not names or len(set(names)) < len(names):
            raise BadInput(f"Table needs at least one column and different names, got {names}")
        if sum(column.width for column in self.columns) > MOST_ENTRIES:
            raise BadInput(
                f"Table needs rows of at most {MOST_ENTRIES} entries, got more; give categories fewer values"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(column.width for column in self.columns),)

    @cached_property
    def places(self) -> tuple[slice, ...]:
        """Which entries of the model's input belong to each column."""
        ends = torch.tensor([column.width for column in self.columns]).cumsum(0).tolist()
        return tuple(slice(end - column.width, end) for end, column in zip(ends, self.columns, strict=True))

    @cached_property
    def scale(self) -> tuple[Tensor, Tensor]:
        """Mean and std of each entry of the model's input."""
        mean, std = list[float](), list[float]()
        for column in self.columns:
            if isinstance(column, Number):
                mean, std = [*mean, column.mean], [*std, column.std]
            else:
                mean, std = (
                    [*mean, *(column.mean or [0.0] * column.width)],
                    [*std, *(column.std or [1.0] * column.width)],
                )
        return torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Of the entries before mean and std."""
        low = [c.low if isinstance(c, Number) else 0.0 for c in self.columns for _ in range(c.width)]
        high = [c.high if isinstance(c, Number) else 1.0 for c in self.columns for _ in range(c.width)]
        return torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)

    @cached_property
    def slack(self) -> Tensor:
        """How far a right guess may be off, (columns,)."""
        return torch.tensor([column.slack for column in self.columns], dtype=torch.float64)

    def _plain(self, x: Tensor) -> Tensor:
        """The model's input without mean and std."""
        mean, std = (t.to(x) for t in self.scale)
        return x * std + mean

    def _scaled(self, plain: Tensor) -> Tensor:
        mean, std = (t.to(plain) for t in self.scale)
        return (plain - mean) / std

    def encode(self, image: Tensor) -> Tensor:
        """From rows (…, columns) to the model's input (…, entries)."""
        self.refuse_rows(image)
        parts = [
            image[..., k, None]
            if isinstance(column, Number)
            else torch.nn.functional.one_hot(image[..., k].long(), column.width).to(image)
            for k, column in enumerate(self.columns)
        ]
        return self._scaled(torch.cat(parts, -1))

    def refuse_rows(self, rows: Tensor) -> None:
        """Refuse rows with another number of columns, or with a category that has no such value."""
        if rows.shape[-1] != len(self.columns) or not rows.is_floating_point():
            raise BadInput(
                f"Table takes rows of {len(self.columns)} floating-point numbers, got {rows.dtype} of shape {tuple(rows.shape)}"
            )
        if not bool(rows.isfinite().all()):
            raise BadInput(
                "Table takes rows without missing values, but some are not finite; fill or leave out these rows"
            )
        for k, column in enumerate(self.columns):
            if isinstance(column, Category) and rows.numel():
                low, high = (float(end) for end in rows[..., k].aminmax())
                if low < 0 or high > column.width - 1:
                    raise BadInput(
                        f"column {column.name!r} has the places 0 to {column.width - 1}, but a row has {low if low < 0 else high:g}"
                    )

    def decode(self, x: Tensor) -> Tensor:
        """From the model's input to rows (…, columns): numbers within their bounds, and the likeliest value of each category."""
        plain = self._plain(x.double())
        parts: list[Tensor] = []
        for column, place in zip(self.columns, self.places, strict=True):
            if isinstance(column, Number):
                value = plain[..., place.start].clamp(column.low, column.high)
                parts.append(value.round() if column.whole else value)
            else:
                parts.append(plain[..., place].argmax(-1).to(plain))
        return torch.stack(parts, -1)

    def project(self, x: Tensor) -> Tensor:
        """Numbers within their bounds, entries of categories within [0, 1]; in model space."""
        low, high = (self._scaled(bound).to(x) for bound in self._bounds)
        return torch.minimum(torch.maximum(x, low), high)

    def typical(self) -> Tensor:
        """The row that anyone would guess who knows how the columns are scaled, shape (columns,): the mean of a number (the middle of its
        bounds if the mean is not within them), and the most frequent value of a category by its mean, else its first."""
        cells = [
            (column.mean if column.low <= column.mean <= column.high else (column.low + column.high) / 2)
            if isinstance(column, Number)
            else float(max(range(column.width), key=lambda k: (column.mean or (0.0,) * column.width)[k]))
            for column in self.columns
        ]
        rounded = [
            round(v) if isinstance(c, Number) and c.whole else v for v, c in zip(cells, self.columns, strict=True)
        ]
        return torch.tensor(rounded, dtype=torch.float64)

    def draw(self, n: int, rng: torch.Generator) -> Tensor:
        """Rows (n, columns) that anyone could draw who knows how the columns are scaled: numbers from a normal distribution of that mean
        and std (evenly within their bounds if the mean is not within them), categories as often as their means say (else evenly)."""
        cells: list[Tensor] = []
        for column in self.columns:
            if isinstance(column, Number):
                inside = column.low <= column.mean <= column.high
                drawn = column.mean + column.std * torch.randn(n, generator=rng, dtype=torch.float64)
                even = column.low + (column.high - column.low) * torch.rand(n, generator=rng, dtype=torch.float64)
                value = drawn.clamp(column.low, column.high) if inside else even
                cells.append(value.round() if column.whole else value)
            else:
                shares = torch.tensor(column.mean or (1.0,) * column.width, dtype=torch.float64).clamp_min(1e-12)
                cells.append(torch.multinomial(shares, n, replacement=True, generator=rng).double())
        return torch.stack(cells, -1)

    def start(self, n: int, rng: torch.Generator) -> Tensor:
        """Free numbers drawn uniformly from [-1, 1] and relaxed, in model space: no column prefers a value."""
        return self.relax(2 * torch.rand(n, *self.shape, generator=rng) - 1)

    def relax(self, free: Tensor) -> Tensor:
        """From free numbers (…, entries) to the model's input: low + (high − low) · sigmoid for numbers, softmax for categories.

        Ref: Vero et al. 2023, public code — softmax relaxation of the categories
        """
        low, high = (bound.to(free) for bound in self._bounds)
        parts = [
            low[place] + (high - low)[place] * free[..., place].sigmoid()
            if isinstance(column, Number)
            else free[..., place].softmax(-1)
            for column, place in zip(self.columns, self.places, strict=True)
        ]
        return self._scaled(torch.cat(parts, -1))

    def free(self, x: Tensor) -> Tensor:
        """Free numbers that :meth:`relax` turns into ``x``; values on a bound are moved inside by a little."""
        low, high = (bound.to(x) for bound in self._bounds)
        share = ((self._plain(x) - low) / (high - low)).clamp(1e-4, 1 - 1e-4)
        parts = [
            share[..., place].logit() if isinstance(column, Number) else share[..., place].log()
            for column, place in zip(self.columns, self.places, strict=True)
        ]
        return torch.cat(parts, -1)

    def likely(self, x: Tensor) -> Tensor:
        """The model's input with entries of categories as shares that sum to 1, before mean and std."""
        plain = self._plain(x)
        for column, place in zip(self.columns, self.places, strict=True):
            if isinstance(column, Category):
                shares = plain[..., place].clamp_min(0)
                total = shares.sum(-1, keepdim=True)
                plain[..., place] = torch.where(total > 0, shares / total.clamp_min(1e-30), 1 / column.width)
        return plain

    def from_likely(self, likely: Tensor) -> Tensor:
        """Back from :meth:`likely` to the model's input."""
        return self._scaled(likely)

    def words(self, rows: Tensor) -> list[dict[str, str | float]]:
        """Rows as a person reads them: by column name, categories by their values."""
        return [
            {
                column.name: column.values[int(value)] if isinstance(column, Category) else float(value)
                for column, value in zip(self.columns, row, strict=True)
            }
            for row in rows.tolist()
        ]
