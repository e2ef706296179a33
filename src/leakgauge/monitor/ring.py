"""Memory that does not grow: the last rows of a stream, and a history that thins itself out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Ring:
    """The last ``rows`` vectors of a stream, in order, in memory allocated once."""

    def __init__(self, rows: int, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> None:
        self._rows = torch.zeros(rows, *shape, dtype=dtype)
        self._next, self._count = 0, 0

    def append(self, values: Tensor) -> None:
        """Adds ``values`` (n, *shape); only the last ``rows`` are kept."""
        values = values[-len(self._rows) :].to(self._rows)
        at = (self._next + torch.arange(len(values))) % len(self._rows)
        self._rows[at] = values
        self._next = (self._next + len(values)) % len(self._rows)
        self._count = min(self._count + len(values), len(self._rows))

    def values(self) -> Tensor:
        """The stored rows, oldest first, as a copy."""
        start = self._next - self._count
        return self._rows[(start + torch.arange(self._count)) % len(self._rows)]

    def clear(self) -> None:
        self._rows.zero_()
        self._next, self._count = 0, 0

    def nbytes(self) -> int:
        return self._rows.nbytes

    def __len__(self) -> int:
        return self._count


class Thinning(Generic[T]):
    """At most ``most`` entries for a stream of any length: when full, every second entry is dropped, and so on.

    The newest entry is always kept, so a curve keeps its whole length and its end.

    >>> history = Thinning(4)
    >>> for i in range(9): history.append(i)
    >>> list(history)
    [0, 4, 8]
    """

    def __init__(self, most: int = 512) -> None:
        self._most, self._step, self._seen = most, 1, 0
        self._kept: list[T] = []
        self._last: T | None = None

    def append(self, entry: T) -> None:
        self._last = entry
        if self._seen % self._step == 0:
            self._kept.append(entry)
            if len(self._kept) > self._most:
                self._kept = self._kept[::2]
                self._step *= 2
        self._seen += 1

    def __iter__(self) -> Iterator[T]:
        yield from self._kept
        if self._kept and self._last is not None and self._last is not self._kept[-1]:
            yield self._last

    def __len__(self) -> int:
        return sum(1 for _ in self)
