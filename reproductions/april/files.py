"""The two files of a study: JSON lines, of which the first tells about the run, and an archive of pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
Pictures = dict[str, np.ndarray]


def write(path: Path, rows: Sequence[Row]) -> None:
    """JSON lines, first under another name, so that a stopped run leaves no half a file."""
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


def read(path: Path) -> tuple[Row, list[Row]]:
    """What a results file says about its run, and its rows."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return lines[0], lines[1:]


def save(path: Path, pictures: Pictures) -> None:
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **pictures)  # pyright: ignore[reportArgumentType]
    part.replace(path)


def load(path: Path) -> Pictures:
    """The pictures of a run; none where the file is not there, as in a fresh checkout."""
    if not path.is_file():
        return {}
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}
