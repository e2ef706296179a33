"""The file of a monitored training: plain JSON lines, written while it runs, so that a broken run keeps what was seen.

The first line (``"kind": "run"``) says what was watched, the following ones (``"report"``) are the monitor's reports, one
per look, ``"paper"`` is a checkpoint of the privacy-token paper's recipe, and the last one (``"end"``) says how it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.audit.files import JsonLines, finite
from leakgauge.audit.migrate import migrated_training

FILE = "monitor.jsonl"
KINDS = ("run", "report", "paper", "end")


@dataclass(frozen=True)
class MonitorRun:
    """A monitored training as far as it was recorded. ``end`` is empty while it runs, or where it was killed."""

    about: Mapping[str, Any]
    reports: tuple[Mapping[str, Any], ...] = ()
    paper: tuple[Mapping[str, Any], ...] = ()
    end: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One line of the file."""

    kind: str
    content: Mapping[str, Any]


def _decode(fields: dict[str, Any]) -> Line:
    kind = fields.pop("kind")
    if kind not in KINDS:
        raise ValueError(f"kind {kind}")
    if kind == "run":
        fields = migrated_training(fields)
    if kind == "report":
        fields = {**fields, "step": int(fields["step"]), "scalars": dict(fields["scalars"])}
    return Line(kind, fields)


STORE = JsonLines(
    FILE,
    encode=lambda line: {"kind": line.kind, **finite(line.content)},
    decode=_decode,
    missing="{folder} holds no monitored training: it has no {file}; make one with `leakgauge monitor`",
)
exists = STORE.exists


def append(folder: Path, kind: str, line: Mapping[str, Any]) -> None:
    """Adds one line, whole or not at all. What is not a number is written as null: it was not measured."""
    STORE.append(folder, Line(kind, line))


def read(folder: Path) -> MonitorRun:
    """All whole lines of the run. Of two reports at one step the later one counts."""
    found: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in KINDS}
    for line in STORE.read(folder):
        found[line.kind].append(line.content)
    reports = {report["step"]: report for report in found["report"]}
    return MonitorRun(
        about=found["run"][-1] if found["run"] else {},
        reports=tuple(reports.values()),
        paper=tuple(found["paper"]),
        end=found["end"][-1] if found["end"] else {},
    )
