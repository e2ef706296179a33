"""Runs cases and writes one record each. A refusal is recorded as a refusal, a crash as an error; neither is a score."""

from __future__ import annotations

import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

import leakgauge
from leakgauge.audit import records
from leakgauge.audit.case import Case
from leakgauge.audit.evaluate import Result, assess
from leakgauge.audit.intervals import ANYWHERE, POSSIBLE, Interval, interval
from leakgauge.audit.pictures import save_strip
from leakgauge.audit.records import Curve, Frame, Record, Status, VictimFacts
from leakgauge.audit.session import Load, Setup, check_fits, set_up
from leakgauge.core import Reconstruction, Trace, Victim
from leakgauge.errors import BadInput, Inapplicable

OnRecord = Callable[[Record], None]


class Runner(Protocol):
    """Runs one case; ``failed`` is the record of a case that could not be run to its end. It travels to other processes."""

    def __call__(self, case: Case, /) -> Record: ...
    def failed(self, case: Case, reason: str) -> Record: ...


class CaseMap(Protocol):
    """Runs every case, here or elsewhere, and gives the records in any order, each as soon as it is there."""

    def __call__(self, run: Runner, cases: Sequence[Case], /) -> Iterable[Record]: ...


def _here(run: Runner, cases: Sequence[Case]) -> Iterable[Record]:
    return map(run, cases)


def run_all(
    cases: Sequence[Case],
    *,
    load: Load,
    folder: Path,
    resume: bool = False,
    map: CaseMap = _here,
    on_record: OnRecord | None = None,
) -> list[Record]:
    """Runs every case that has no record yet and appends its record as soon as it is done.

    ``map`` may run cases elsewhere (``Processes``, ``OnRay``); records are written here, as they come, and put into the
    order of the cases at the end, so that the file does not tell who was faster. A killed run loses what was under way.
    """
    done = {record.key: record for record in records.read(folder)} if resume and records.exists(folder) else {}
    todo = [case for case in cases if case.key() not in done]
    for record in map(_Runner(load, folder), todo):
        records.append(folder, record)
        done[record.key] = record
        if on_record is not None:
            on_record(record)
    records.sort(folder, [case.key() for case in cases])
    return [done[case.key()] for case in cases]


@dataclass(frozen=True)
class _Runner:
    load: Load
    folder: Path

    def __call__(self, case: Case) -> Record:
        return run_case(case, load=self.load, folder=self.folder)

    def failed(self, case: Case, reason: str) -> Record:
        return _record(case, "error", reason, began=time.perf_counter())


def run_case(case: Case, *, load: Load, folder: Path) -> Record:
    """Attacks one case, its null run and the trivial baseline, and judges. ``BadInput`` is the user's and is raised."""
    began, victim = time.perf_counter(), VictimFacts()
    try:
        setup = set_up(case, load)
        victim = _described(setup, check_fits(setup))
        result = attack_case(case, setup)
        return _record(
            case,
            "done",
            began=began,
            victim=victim,
            assumptions=result.assumptions,
            scores=result.scores,
            null=result.null,
            baseline=result.baseline,
            start=result.start,
            restarts=result.restarts,
            intervals=_intervals(result.restarts),
            verdict=result.verdict,
            notes=result.reconstruction.notes,
            stated=result.reconstruction.stated,
            curve=_curve(result.reconstruction.trace),
            pictures=save_pictures(case, result, folder),
            progress=_progress(case, setup.victim, result, folder),
        )
    except Inapplicable as refusal:
        return _record(case, "refused", str(refusal), began=began, victim=victim)
    except (BadInput, OSError):  # for the user to fix, a full disk among them; without a record the case can be resumed
        raise
    except Exception as crash:  # noqa: BLE001 - recorded with its traceback as an error, never as a score
        reason, notes = f"{type(crash).__name__}: {crash}", (traceback.format_exc(),)
        return _record(case, "error", reason, began=began, victim=victim, notes=notes)


def _record(case: Case, status: Status, reason: str = "", *, began: float, **found: Any) -> Record:
    return Record(
        key=case.key(),
        status=status,
        case=case,
        attack=repr(case.build_attack()),
        channel=repr(case.build_channel()),
        defenses=tuple(repr(d) for d in case.build_defenses()),
        versions=versions(),
        command=case.command(),
        reason=reason,
        seconds=time.perf_counter() - began,
        peak_bytes=_peak_bytes(),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        **found,
    )


def _described(setup: Setup, classes: int) -> VictimFacts:
    victim = setup.victim
    parameters = sum(p.numel() for p in victim.parameters().values())
    shape = tuple(victim.space.shape)
    return VictimFacts(victim.name, victim.mode, parameters, classes, shape, str(victim.device))


def attack_case(case: Case, setup: Setup, *, nothing: Reconstruction | None = None) -> Result:
    """Attacks the case and judges; ``nothing`` is its null run where that is known."""
    (x, y), seen, pool = setup.private(case), setup.observation(case), setup.pool(case)
    return assess(case.build_attack(), setup.victim, seen, x, y, seed=case.seed, pool=pool, nothing=nothing)


def save_pictures(case: Case, result: Result, folder: Path) -> dict[str, str]:
    """Truth, reconstruction, null run and baseline as strips, by their names."""
    return {name: save_strip(folder, f"{case.key()}-{name}", images) for name, images in result.images.items()}


def _intervals(restarts: Mapping[str, Sequence[float]]) -> dict[str, Interval]:
    found = {name: interval(values, within=POSSIBLE.get(name, ANYWHERE)) for name, values in restarts.items()}
    return {name: one for name, one in found.items() if one is not None}


def _curve(trace: Trace) -> Curve:
    return Curve(tuple(trace.steps), tuple(_finite(row) for row in trace.losses.T))


def _finite(losses: Tensor) -> tuple[float | None, ...]:
    return tuple(v if abs(v) < float("inf") else None for v in losses.tolist())


def _progress(case: Case, victim: Victim, result: Result, folder: Path) -> tuple[Frame, ...]:
    """The candidate over the steps, each image at the place that it has in the end, to be laid over its original."""
    trace = result.reconstruction.trace
    shown = [
        (step, victim.space.decode(x).cpu()[result.order])
        for step, x in zip(trace.snapshot_steps, trace.snapshots, strict=True)
    ]
    return tuple(Frame(step, save_strip(folder, f"{case.key()}-step-{step:06d}", images)) for step, images in shown)


def versions() -> dict[str, str]:
    return {
        "leakgauge": leakgauge.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def _peak_bytes() -> int:
    """Highest memory so far: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
