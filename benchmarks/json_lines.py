"""The rows that a benchmark keeps in a file, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def kept_lines(path: Path | None) -> list[dict[str, Any]]:
    """What an earlier run kept; nothing where there is no file."""
    return [] if path is None or not path.is_file() else read_lines(path)


def write_lines(path: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """In place of what the file held; nothing without a path."""
    if path is not None:
        path.write_text(_lines(rows), encoding="utf-8")


def append_lines(path: Path | None, *rows: Mapping[str, Any]) -> None:
    """After what the file holds; nothing without a path."""
    if path is not None:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(_lines(rows))


def print_and_append(path: Path | None, row: Mapping[str, Any]) -> None:
    print(json.dumps(row), flush=True)
    append_lines(path, row)


def _lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
