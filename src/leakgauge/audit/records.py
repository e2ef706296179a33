"""A record is one line of JSON per audited case; the report is made of records and of nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit.pictures import write_whole
from leakgauge.errors import BadInput

FILE = "records.jsonl"
Status = Literal["done", "refused", "error"]


@dataclass(frozen=True)
class Record:
    """Everything one case produced.

    ``metrics``, ``null`` and ``baseline`` map a metric name (mse, psnr, ssim, lpips, reid, labels) to its summary
    ``{"mean", "min", "max", "per_image": [...]}`` or to None where it was not measured; so does ``start``, where a start
    was revealed. ``restarts`` maps a metric name to its value for each restart (mean over the batch), ``intervals`` to
    the mean over restarts ``{"mean", "low", "high", "n", "level"}`` where there are several. ``pictures`` maps truth /
    reconstruction / null / baseline to a PNG strip (images side by side, 1 pixel gap) relative to the run folder, and
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
    return json.dumps(_plain(asdict(record)), ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _restored(value: Any) -> Any:
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, dict):
        return {k: _restored(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restored(v) for v in value]
    return value


def append(folder: Path, record: Record) -> None:
    """Adds the record to the run, whole or not at all: if the disk is full the file is cut back to what it was."""
    append_line(folder / FILE, to_line(record).encode())


def append_line(path: Path, line: bytes) -> None:
    """Adds ``line`` to a file of lines and brings it to the disk, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        _drop_half_line(path, descriptor)
        before = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(descriptor, line[written:])
            os.fsync(descriptor)
        except BaseException:  # also Ctrl-C
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _drop_half_line(path: Path, descriptor: int) -> None:
    """A killed process may have left a last line without its newline; it never counted."""
    with path.open("rb") as file:  # the last byte alone is read: a long run appends often
        if file.seek(0, os.SEEK_END) == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) == b"\n":
            return
    os.ftruncate(descriptor, path.read_bytes().rfind(b"\n") + 1)


def read(folder: Path) -> list[Record]:
    """All whole records of a run, in order."""
    path = folder / FILE
    if not path.is_file():
        raise BadInput(
            f"{folder} is not a run folder: it has no {FILE}; give the folder that `leakgauge audit --out` wrote"
        )
    return list(_parsed(path))


def sort(folder: Path, keys: Sequence[str]) -> None:
    """Puts the run's lines into the order of ``keys``, those of other keys last; whole or not at all."""
    path = folder / FILE
    if not path.is_file():
        return
    lines = path.read_bytes().split(b"\n")[:-1]
    place = {key: i for i, key in enumerate(keys)}
    ordered = sorted(lines, key=lambda line: place.get(json.loads(line).get("key"), len(place)))
    if ordered != lines:
        write_whole(path, b"".join(line + b"\n" for line in ordered))


def _parsed(path: Path) -> Iterator[Record]:
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is half a record and never counted
    for number, line in enumerate(lines, start=1):
        try:
            fields = _restored(json.loads(line))
            for name in ("defenses", "assumptions", "notes", "progress"):
                fields[name] = tuple(fields[name])
            fields["stated"] = tuple((str(q), str(a)) for q, a in fields.get("stated", ()))
            yield Record(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise BadInput(
                f"line {number} of {path} is not a record of this version; move the file away or delete that line"
            ) from error
