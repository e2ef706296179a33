"""How every part of the four studies runs: one command line, one results file that survives a stop, and the same facts in every row."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote, unquote

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Row = dict[str, Any]
Pictures = dict[str, np.ndarray]
ROOT = Path(__file__).parents[2]
END = "end"
"""Unit of the row that a part writes when all its work is done; rows after it mean that there is work again."""
SHOWN = 112
"""Largest side of a kept picture."""


class NoTimeLeft(Exception):
    """There is no time for what comes next; a later call resumes with it."""


# --- the command line ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every part is given. ``until`` (of ``time.time``) is when it has to be done."""

    quick: bool
    device: torch.device
    out: Path
    seed: int = 0
    data: Path | None = None
    until: float = math.inf

    def left(self) -> float:
        """Seconds until the part has to be done."""
        return self.until - time.time()

    def allows(self, seconds: float) -> bool:
        return seconds <= self.left()

    def for_share(self, share: float) -> Self:
        """The same with this share of the time that is left."""
        return replace(self, until=time.time() + share * self.left())

    @classmethod
    def of(cls, given: argparse.Namespace, **more: Any) -> Self:
        until = math.inf if given.within is None else time.time() + given.within
        device = torch.device(given.device)
        return cls(
            quick=given.quick, device=device, out=given.out, seed=given.seed, data=given.data, until=until, **more
        )


def parser(about: str | None, *, out: Path) -> argparse.ArgumentParser:
    """The options that all parts take."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--quick", action="store_true", help="tiny networks and embedded images, in seconds; proves nothing"
    )
    made.add_argument("--data", type=Path, help="folder with the data; embedded images without it")
    made.add_argument("--out", type=Path, default=out, help="folder for rows, pictures, weights and figures")
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--seed", type=int, default=0, help="rows of other seeds go to NAME_seedN.jsonl")
    made.add_argument("--within", type=float, metavar="SECONDS", help="begin nothing that would take longer than this")
    return made


# --- results ---------------------------------------------------------------------------------------------------------


def provenance(options: Options) -> Row:
    """What every row says about its making."""
    device = options.device
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "device": where,
        "torch": torch.__version__,
        "seed": options.seed,
        "commit": commit(),
        "quick": options.quick,
    }


def commit() -> str:
    """Of the checkout, or of ``REPRODUCTION_COMMIT`` where the scripts were copied without their history."""
    given = os.environ.get("REPRODUCTION_COMMIT")
    if given:
        return given
    try:
        found = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"


@dataclass
class Rows:
    """The rows of one part in ``FOLDER/NAME.jsonl``, with its pictures and weights in folders beside it.

    Each row has a ``unit``, the piece of work that made it. A unit is on disk as soon as it is done and is not done again. Several
    processes may write to one file. A full run drops the rows of a quick one; a quick run refuses to touch full results.
    """

    folder: Path
    name: str
    facts: Row
    rows: list[Row] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    """Units that went wrong, and what there was no time for."""
    complete: bool = False
    """Whether the last thing in the file says that all is there."""
    _began: float = field(default_factory=time.perf_counter)

    @classmethod
    def resume(cls, options: Options, name: str) -> Rows:
        name = name if options.seed == 0 else f"{name}_seed{options.seed}"
        made = cls(options.out, name, provenance(options))
        options.out.mkdir(parents=True, exist_ok=True)
        if made.path.is_file():
            text = made.path.read_text(encoding="utf-8")
            before = _parse(text)
            if options.quick and not all(row["quick"] for row in before):
                raise SystemExit(f"{made.path} holds full results; give a quick run another folder with --out")
            made._take([row for row in before if row["quick"] == options.quick])
            if len(before) != text.count("\n") or any(row["quick"] != options.quick for row in before):
                made._write_again()
        return made

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.jsonl"

    @property
    def done(self) -> dict[str, Row]:
        """The first row of each unit."""
        return {row["unit"]: row for row in reversed(self.rows)}

    def has(self, unit: str | None = None, **wanted: Any) -> bool:
        """Whether there is a row of this unit, or with these values."""
        wanted = wanted if unit is None else {"unit": unit, **wanted}
        return any(all(row.get(key) == value for key, value in wanted.items()) for row in self.rows)

    def add(self, unit: str, *rows: Row, pictures: dict[str, Tensor] | None = None, **values: Any) -> None:
        """All rows of a unit, or one row of ``values``. What another process has written for it meanwhile stays."""
        if self.has(unit):
            raise ValueError(f"{self.name} has the unit {unit!r} already")
        for name, images in (pictures or {}).items():
            self.keep(name, images)
        self._append(unit, [_plain({"unit": unit, **self.facts, **row}) for row in rows or (values,)])

    def end(self) -> None:
        """Says that all is there."""
        if not self.complete:
            self._append(END, [{"unit": END, **self.facts, "rows": len(self.rows)}])

    def _take(self, lines: list[Row]) -> None:
        self.complete = bool(lines) and lines[-1]["unit"] == END
        self.rows = [row for row in lines if row["unit"] != END]

    def _append(self, unit: str, made: list[Row]) -> None:
        with self.path.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = file.read()
            lines = _parse(known)
            self._take(lines)
            if not self.has(unit):
                self._take(lines + made)
                file.write(("\n" if known and not known.endswith("\n") else "") + "".join(map(_line, made)))
                file.flush()
                os.fsync(file.fileno())
        print(f"{self.name}: {unit} after {time.perf_counter() - self._began:.1f} s", flush=True)

    def drop(self, **wanted: Any) -> None:
        """Removes the rows with these values, which are measured again. Not for files that several processes write."""
        self.rows = [row for row in self.rows if any(row.get(key) != value for key, value in wanted.items())]
        self.complete = False
        self._write_again()

    def wait(self, what: str) -> None:
        print(f"{self.name}: no time for {what}; run it again to resume", flush=True)
        self.waiting.append(what)

    @contextmanager
    def attempt(self, unit: str) -> Iterator[None]:
        """One unit. What goes wrong in it is printed and remembered, and the units after it still run; it gets no row."""
        try:
            yield
        except NoTimeLeft as stop:
            raise NoTimeLeft(f"{unit}: {stop}") from stop
        except Exception:  # noqa: BLE001 - it is printed, the part exits with an error, and the next call tries again
            traceback.print_exc()
            self.failed.append(unit)

    def keep(self, name: str, images: Tensor) -> None:
        """Pictures (N, C, H, W) in [0, 1], as bytes; large ones are averaged down. Call it before ``add``."""
        if images.shape[-1] > SHOWN:
            images = F.adaptive_avg_pool2d(images, (SHOWN, SHOWN))
        self.keep_bytes(name, (images.detach().cpu().clamp(0, 1) * 255).round().byte().numpy())

    def keep_bytes(self, name: str, images: np.ndarray) -> None:
        path = self._file("pictures", name, "npy")
        part = path.with_name(f".{os.getpid()}.npy")
        np.save(part, images)
        part.replace(path)

    @property
    def pictures(self) -> Pictures:
        return read_pictures(self.folder, self.name)

    def save(self, name: str, model: nn.Module, *, half: bool = False) -> Path:
        """Weights for later parts; in half precision where a large network has to travel."""
        return save_weights(self._file("weights", name, "safetensors"), model, half=half)

    def load(self, name: str, model: nn.Module) -> bool:
        """Fills the model, where these weights were saved before."""
        path = self._file("weights", name, "safetensors")
        if not path.is_file():
            return False
        like = model.state_dict()
        model.load_state_dict({n: t.to(like[n]) for n, t in load_file(path).items()})
        return True

    def _file(self, kind: str, name: str, ending: str) -> Path:
        path = self.folder / kind / self.name / f"{quote(name, safe=' ,()=+')}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _write_again(self) -> None:
        part = self.path.with_suffix(".part")
        end = [{"unit": END, **self.facts, "rows": len(self.rows)}] if self.complete else []
        part.write_text("".join(map(_line, [*self.rows, *end])), encoding="utf-8")
        part.replace(self.path)


def save_weights(path: Path, model: nn.Module, *, half: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {n: t.detach().cpu().contiguous().clone() for n, t in model.state_dict().items()}
    stored = {n: t.half() if half and t.is_floating_point() else t for n, t in stored.items()}
    save_file(stored, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    return path


def digest(model: nn.Module) -> str:
    """SHA-256 of the weights, for rows of networks that are too large to be kept."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def read(path: Path) -> list[Row]:
    """The measured rows of a file, without the one that says that it is complete."""
    return [row for row in _lines(path) if row["unit"] != END]


def read_pictures(folder: Path, name: str) -> Pictures:
    """Pictures of a part by name; none in a fresh checkout, as they are not committed."""
    return {unquote(path.stem): np.load(path) for path in sorted((folder / "pictures" / name).glob("[!.]*.npy"))}


def measured_on(path: Path) -> str:
    """Where the rows of a file come from, and whether they are all there, as a page says it."""
    rows = read(path)
    found = {
        key: ", ".join(sorted({part for row in rows for part in str(row[key]).split(", ")}))
        for key in ("device", "torch", "seed", "commit")
    }
    seeds = f"seed{'s' * (', ' in found['seed'])} {found['seed']}"
    made = "" if found["commit"] == "unknown" else f", commit {found['commit']}"
    words = f"Measured on {found['device']}, torch {found['torch']}, {seeds}{made}."
    complete = _lines(path)[-1]["unit"] == END
    return words if complete else f"{words} **Stopped before its end; rows are missing.**"


def rounded(values: Sequence[float]) -> list[float]:
    """Four digits that count."""
    return [float(f"{value:.4g}") for value in values]


def _plain(value: Any) -> Any:
    """Six digits that count, tuples as lists, infinity (the PSNR of a perfect copy) as a number that JSON has, and nan as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(f"{value:.6g}") if math.isfinite(value) else math.copysign(999.0, value)
    return value


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _lines(path: Path) -> list[Row]:
    return _parse(path.read_text(encoding="utf-8"))


def _parse(text: str) -> list[Row]:
    """A line that a stop cut short is left out."""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


# --- running ---------------------------------------------------------------------------------------------------------

OptionsT = TypeVar("OptionsT", bound=Options)


@dataclass(frozen=True)
class Part(Generic[OptionsT]):
    """One script of a study: what it measures, and the figures it draws from rows and pictures."""

    name: str
    run: Callable[[OptionsT, Rows], None]
    draw: Callable[[list[Row], Pictures, Path], object] | None = None


def run_part(part: Part[OptionsT], options: OptionsT) -> Rows:
    """Runs what is missing and draws. The last row says whether all is there."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{part.name}: stopped"))
    rows = Rows.resume(options, part.name)
    try:
        part.run(options, rows)
        if not rows.failed and not rows.waiting:
            rows.end()
    except NoTimeLeft as stop:
        rows.wait(str(stop))
    finally:
        signal.signal(signal.SIGTERM, before)
    if part.draw is not None and options.seed == 0 and rows.rows:
        part.draw(rows.rows, rows.pictures, options.out)
    if rows.failed:
        raise SystemExit(f"{part.name}: failed, see above: {', '.join(rows.failed)}")
    return rows


def draw_part(part: Part[OptionsT], folder: Path) -> None:
    assert part.draw is not None
    rows = read(folder / f"{part.name}.jsonl")
    if rows:
        part.draw(rows, read_pictures(folder, part.name), folder)
