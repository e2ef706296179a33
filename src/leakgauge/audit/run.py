"""Runs cases and writes one record each. A refusal is recorded as a refusal, a crash as an error; neither is a score.

Cases may run in processes of their own (:class:`Processes`): a crash or a kill of one costs the case it was at, and that is tried again.
An update with unknown data (:func:`attack_captured`) gives pictures and numbers that the adversary sees, but no score.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import numpy
import numpy as np
import torch
from torch import Tensor

import leakgauge
from leakgauge.audit import records
from leakgauge.audit.case import Case
from leakgauge.audit.evaluate import Result, assess, assumed, null_run
from leakgauge.audit.evidence import commit, now
from leakgauge.audit.files import save_strip, write_whole
from leakgauge.audit.records import Curve, Frame, Record, Status, VictimFacts
from leakgauge.audit.scoring import ANYWHERE, POSSIBLE, Interval, interval
from leakgauge.audit.session import Load, Setup, check_fits, set_up
from leakgauge.channels.dropout import without_dropout
from leakgauge.core import Observation, Reconstruction, Trace, Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.knowledge import gradient_alignment

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
    """Runs every case that has no record yet, or whose record is of a crash or withdrawn, and appends its record as soon as it is done.

    ``map`` may run cases elsewhere (``Processes``, ``OnRay``); records are written here, as they come, and put into the
    order of the cases at the end, so the file does not depend on who was faster. A killed run loses what was under way.
    """
    done = {record.key: record for record in records.read(folder)} if resume and records.exists(folder) else {}
    todo = [case for case in cases if case.key() not in done or done[case.key()].broken]
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
        finished=now(),
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
        **({"commit": commit()} if commit() else {}),
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


CAPTURED, CAPTURED_IMAGES = "result.json", "reconstruction.npz"


@dataclass(frozen=True)
class Unscored:
    """What can be said without the truth: how well reconstruction and null run explain the update (1 − cosine; 0 is fully)."""

    mismatch: float | None
    null_mismatch: float | None
    labels: list[int] | None
    pictures: dict[str, str]
    summary: dict[str, Any]


def attack_captured(case: Case, victim: Victim, seen: Observation, *, folder: Path) -> Unscored:
    """Runs the case's attack and its null run on a captured observation and writes pictures, images and ``result.json``.

    The images are also kept as ``reconstruction.npz`` in [0, 1]. There is no verdict: a verdict compares with the truth.
    A client's dropout masks are its own, so the mismatch is measured without dropout, the mean of the masks.
    """
    attack = case.build_attack()
    result = attack(victim, seen, seed=case.seed)
    nothing = null_run(attack, victim, seen, seed=case.seed)
    images = victim.space.decode(result.x).cpu()
    pictures = {
        "reconstruction": save_strip(folder, "reconstruction", images),
        "null": save_strip(folder, "null", victim.space.decode(nothing.x).cpu()),
    }
    np.savez_compressed(folder / CAPTURED_IMAGES, images=images.numpy())
    labels = None if result.y is None else [int(label) for label in result.y]
    steady = without_dropout(victim) if victim.mode == "train" else victim
    mismatch, null_mismatch = (_mismatch(steady, seen, one) for one in (result, nothing))
    summary = {
        "model": case.model,
        "attack": repr(attack),
        "channel": repr(seen.channel),
        "assumptions": [asdict(a) for a in assumed(attack, seen)],
        "mismatch": mismatch,
        "null_mismatch": null_mismatch,
        "labels": labels,
        "losses": result.losses.tolist(),
        "notes": [*result.notes, *(["mismatch measured without dropout"] if steady is not victim else [])],
        "stated": dict(result.stated),
        "pictures": pictures,
        "seconds": result.seconds,
        "versions": versions(),
        "verdict": None,
        "why_no_verdict": "the true data is not known here, so nothing could be scored",
    }
    write_whole(folder / CAPTURED, json.dumps(summary, indent=1).encode())
    return Unscored(mismatch, null_mismatch, labels, pictures, summary)


def _mismatch(victim: Victim, seen: Observation, result: Reconstruction) -> float | None:
    if result.y is None:
        return None
    return 1 - float(gradient_alignment(victim, seen, result.x, result.y))


PRELOADED = ["torch", "torch.optim", "leakgauge.audit.run", "leakgauge.attacks"]
"""What every case needs and what is slow to import. None of them may touch a GPU on import: a fork could not use it then."""


@dataclass(frozen=True)
class Processes:
    """A map for ``run_all``: ``workers`` processes, each with one case at a time; records come as they are done.

    A worker that dies (killed, out of memory) is replaced, and its case is run ``attempts`` times in all before it becomes
    an error record. An exception that a case raises, such as ``BadInput``, ends the map as it would end a plain one.
    """

    workers: int = 2
    attempts: int = 2

    def __post_init__(self) -> None:
        if self.workers < 1 or self.attempts < 1:
            raise BadInput(f"Processes needs at least 1 worker and 1 attempt, got {self}")

    def __call__(self, run: Runner, cases: Iterable[Case]) -> Iterator[Record]:
        waiting = deque((case, 1) for case in cases)
        crew: dict[Connection, _Worker] = {}
        try:
            while waiting or crew:
                while waiting and len(crew) < self.workers:
                    worker = _Worker.started(run)
                    crew[worker.pipe] = worker.at(*waiting.popleft())
                for pipe in wait(list(crew)):
                    assert isinstance(pipe, Connection)
                    worker = crew.pop(pipe)
                    answer = worker.answer()
                    if answer is None:
                        waiting, record = self._lost(worker, waiting, run)
                    elif isinstance(answer, BaseException):
                        raise answer
                    else:
                        record = answer
                        if waiting:
                            crew[pipe] = worker.at(*waiting.popleft())
                        else:
                            worker.ended()
                    if record is not None:
                        yield record
        finally:
            for worker in crew.values():
                worker.ended(now=True)

    def _lost(
        self, worker: _Worker, waiting: deque[tuple[Case, int]], run: Runner
    ) -> tuple[deque[tuple[Case, int]], Record | None]:
        case, attempt = worker.case, worker.attempt
        worker.ended(now=True)
        if attempt < self.attempts:
            waiting.appendleft((case, attempt + 1))
            return waiting, None
        return waiting, run.failed(case, f"its process died {attempt} times (exit code {worker.process.exitcode})")


class _Worker:
    """A process and the pipe to it; ``case`` is what it is at."""

    case: Case
    attempt: int

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe

    @classmethod
    def started(cls, run: Callable[[Case], Record]) -> _Worker:
        context = _context()
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(run, theirs, dict(os.environ)), daemon=True)
        process.start()
        theirs.close()  # then a dead worker is an end of file
        return cls(process, ours)

    def at(self, case: Case, attempt: int) -> _Worker:
        self.case, self.attempt = case, attempt
        with suppress(BrokenPipeError):  # it died before its work; the wait sees the end of file
            self.pipe.send(case)
        return self

    def answer(self) -> Record | BaseException | None:
        """What came back; None when the process is dead."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return None

    def ended(self, *, now: bool = False) -> None:
        self.pipe.close()
        if now:
            self.process.kill()
        self.process.join()


def _context() -> ForkServerContext | SpawnContext:
    """Workers are forks of a server that has imported torch and done nothing else, so all but the first start at once.

    A fork of this process would copy torch's threads and locks. Where there is no fork every worker is a new interpreter.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _work(run: Callable[[Case], Record], pipe: Connection, environment: dict[str, str]) -> None:
    """Runs in the worker until the driver is gone. Ctrl-C is the driver's, which ends its workers."""
    os.environ.clear()  # the server's are those of its start
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        try:
            answer: Record | BaseException = run(case)
        except BaseException as error:  # noqa: BLE001 - carried to the driver, which raises it
            answer = error
        try:
            pipe.send(answer)
        except BrokenPipeError:  # the driver was killed
            return
