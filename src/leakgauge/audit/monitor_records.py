"""The file of a monitored training: plain JSON lines, written while it runs, so that a broken run keeps what was seen.

The first line (``"kind": "run"``) says what was watched, the following ones (``"report"``) are the monitor's reports, one
per look, ``"paper"`` is a checkpoint of the privacy-token paper's recipe, and the last one (``"end"``) says how it ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.audit.files import append_line, finite, line_of, whole_lines
from leakgauge.errors import BadInput

FILE = "monitor.jsonl"
KINDS = ("run", "report", "paper", "end")


@dataclass(frozen=True)
class MonitorRun:
    """A monitored training as far as it was recorded. ``end`` is empty while it runs, or where it was killed."""

    about: Mapping[str, Any]
    reports: tuple[Mapping[str, Any], ...] = ()
    paper: tuple[Mapping[str, Any], ...] = ()
    end: Mapping[str, Any] = field(default_factory=dict)


def append(folder: Path, kind: str, line: Mapping[str, Any]) -> None:
    """Adds one line, whole or not at all. What is not a number is written as null: it was not measured."""
    append_line(folder / FILE, line_of({"kind": kind, **finite(line)}))


def exists(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read(folder: Path) -> MonitorRun:
    """All whole lines of the run. Of two reports at one step the later one counts."""
    path = folder / FILE
    if not exists(folder):
        raise BadInput(f"{folder} holds no monitored training: it has no {FILE}; make one with `leakgauge monitor`")
    found: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    for number, text in whole_lines(path):
        try:
            line = json.loads(text)
            kind = line.pop("kind")
            if kind == "report":
                line = {**line, "step": int(line["step"]), "scalars": dict(line["scalars"])}
            found[kind].append(line)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(
                f"line {number} of {path} is not a line of a monitored training; move the file away or delete that line"
            ) from error
    reports = {report["step"]: report for report in found["report"]}
    return MonitorRun(
        about=found["run"][-1] if found["run"] else {},
        reports=tuple(reports.values()),
        paper=tuple(found["paper"]),
        end=found["end"][-1] if found["end"] else {},
    )
