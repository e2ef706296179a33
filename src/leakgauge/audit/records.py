"""A record is one line of JSON per audited case; the report is made of records and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit.files import append_line, infinity_as_text, infinity_from_text, line_of, sort_lines, whole_lines
from leakgauge.errors import BadInput

FILE = "records.jsonl"
Status = Literal["done", "refused", "error"]


@dataclass(frozen=True)
class Record:
    """Everything one case produced.

    ``metrics``, ``null`` and ``baseline`` map a metric name (mse, psnr, ssim, lpips, reid, labels, layout, layout_rank, pieces,
    pieces_lead, ssim_reduced, psnr_reduced) to its summary ``{"mean", "min", "max", "per_image": [...]}`` or to None where it was not
    measured; so does ``start``, where a start was revealed. ``restarts`` maps a metric name to its value for each restart (mean over the
    batch), ``intervals`` to the mean over restarts ``{"mean", "low", "high", "n", "level"}`` where there are several. ``pictures`` maps
    truth / reconstruction / null / baseline to a PNG strip (images side by side, 1 pixel gap) relative to the run folder, and
    ``progress`` lists ``{"step", "picture"}``. ``curve`` is ``{"steps": [...], "losses": [[restart 0 ...], ...]}``.
    ``stated`` is what the attack said could be recovered before it solved anything. ``finished`` is the time (UTC,
    ISO 8601) at which the case was done.
    """

    key: str
    status: Status
    case: Mapping[str, Any]
    victim: Mapping[str, Any]
    attack: str
    channel: str
    defenses: tuple[str, ...]
    assumptions: tuple[Mapping[str, str], ...]
    versions: Mapping[str, str]
    seed: int
    seconds: float
    peak_bytes: int
    metrics: Mapping[str, Any] = field(default_factory=dict)
    null: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    restarts: Mapping[str, list[float]] = field(default_factory=dict)
    intervals: Mapping[str, Any] = field(default_factory=dict)
    verdict: str | None = None
    rule: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    stated: tuple[tuple[str, str], ...] = ()
    curve: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)
    progress: tuple[Mapping[str, Any], ...] = ()
    command: str = ""
    finished: str = ""


def to_line(record: Record) -> str:
    """One JSON line. Infinite values (a perfect PSNR) are written as the strings "inf" and "-inf"; NaN is refused."""
    return line_of(infinity_as_text(asdict(record)))


def append(folder: Path, record: Record) -> None:
    """Adds the record to the run, whole or not at all."""
    append_line(folder / FILE, to_line(record))


def exists(folder: Path) -> bool:
    return (folder / FILE).is_file()


def read(folder: Path) -> list[Record]:
    """All whole records of a run, in order."""
    if not exists(folder):
        raise BadInput(
            f"{folder} is not a run folder: it has no {FILE}; give the folder that `leakgauge audit --out` wrote"
        )
    return list(_parsed(folder / FILE))


def latest(found: Sequence[Record]) -> list[Record]:
    """The last record of every set-up: one that was run again counts once, as it ended last."""
    return list({record.key: record for record in found}.values())


def sort(folder: Path, keys: Sequence[str]) -> None:
    """Puts the run's lines into the order of ``keys``, those of other keys last; whole or not at all."""
    if exists(folder):
        sort_lines(folder / FILE, keys)


def _parsed(path: Path) -> Iterator[Record]:
    for number, line in whole_lines(path):
        try:
            fields = infinity_from_text(json.loads(line))
            for name in ("defenses", "assumptions", "notes", "progress"):
                fields[name] = tuple(fields[name])
            fields["stated"] = tuple((str(q), str(a)) for q, a in fields.get("stated", ()))
            yield Record(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(
                f"line {number} of {path} is not a record of this version; move the file away or delete that line"
            ) from error
