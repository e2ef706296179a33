"""Work that is done in pieces, by several processes and in several calls: what is done is kept, what would not end in time is not begun."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MARGIN = 1.25
"""How much longer than the slowest piece before a piece may take; others may share the device by then."""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Only one process at a time is inside the block for this file."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Pieces:
    """One JSON line for each piece, appended when it is done. ``run`` is what a line must say to belong to this run."""

    path: Path
    run: Row

    def add(self, **values: Any) -> Row:
        row = self.run | values
        line = json.dumps(row, ensure_ascii=False) + "\n"
        if self.path.is_file() and self.path.read_bytes()[-1:] not in (b"", b"\n"):
            line = "\n" + line  # a kill has cut off the line before
        with self.path.open("ab", buffering=0) as file:  # one write, so that lines of several processes do not mix
            file.write(line.encode())
        return row

    def done(self, **wanted: Any) -> list[Row]:
        """The lines with these values. One that a kill cut off is left out."""
        if not self.path.is_file():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row for row in rows if all(row.get(key) == value for key, value in (self.run | wanted).items())]


@dataclass(frozen=True)
class Clock:
    """The time that is left until ``end`` (of ``time.monotonic``); without an end there is always enough."""

    end: float | None = None

    @classmethod
    def within(cls, seconds: float | None) -> Clock:
        return cls(None if seconds is None else time.monotonic() + seconds)

    def allows(self, seconds: float) -> bool:
        return self.end is None or time.monotonic() + seconds <= self.end


def longest(rows: list[Row], amount: int) -> float:
    """How long ``amount`` (images, say) may take after the slowest of these rows; 0, that is unknown, without any."""
    return MARGIN * max((row["seconds"] / row["amount"] for row in rows), default=0.0) * amount
