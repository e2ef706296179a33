"""Runs a whole audit: one question after another, each resumable by its own file, each refusal recorded."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from leakgauge.audit import answers, defend, records, scan_records
from leakgauge.audit.answers import Answer
from leakgauge.audit.case import restored
from leakgauge.audit.defense_records import DefenseRecord
from leakgauge.audit.questions import Question
from leakgauge.audit.records import Record
from leakgauge.audit.run import CaseMap, run_all
from leakgauge.audit.scan_records import DECODER, CutRecord
from leakgauge.audit.scan_run import ScanRun
from leakgauge.audit.session import Load
from leakgauge.audit.training import train, trained
from leakgauge.audit.whole_plan import WholePlan
from leakgauge.audit.wording import result
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import watching

OTHER_THAN_ATTACK = 0.05
"""Of a case, the part that follows its steps: null run and scoring."""


class Watcher(Protocol):
    """Is told what goes on. ``done`` counts parts of the question, also fractions of one."""

    def started(self, question: Question, parts: int) -> None: ...
    def moved(self, question: Question, done: float, said: str) -> None: ...
    def ended(self, answer: Answer) -> None: ...


class Unwatched:
    """Nobody looks."""

    def started(self, question: Question, parts: int) -> None: ...
    def moved(self, question: Question, done: float, said: str) -> None: ...
    def ended(self, answer: Answer) -> None: ...


@dataclass(frozen=True)
class _Run:
    plan: WholePlan
    folder: Path
    load: Load
    watcher: Watcher
    map: CaseMap | None


def run(
    plan: WholePlan, *, folder: Path, load: Load, watcher: Watcher | None = None, map: CaseMap | None = None
) -> dict[Question, Answer]:
    """Does what the plan says and is not done yet; returns what became of every question.

    What is done is known from each question's own file, so the same call goes on with a run that was stopped anywhere. A
    question that refuses or crashes is recorded as such, and the next one runs. ``map`` runs the cases of ``updates``
    elsewhere.
    """
    this = _Run(plan, folder, load, Unwatched() if watcher is None else watcher, map)
    known = answers.read(folder)
    for question in plan.questions:
        before = known.get(question)
        answer = _answered(this, question, before)
        same = before is not None and before.status == answer.status
        known[question] = answer = before if before is not None and same else answers.append(folder, answer)
        this.watcher.ended(answer)
    return {question: known[question] for question in plan.questions}


def _answered(run: _Run, question: Question, before: Answer | None) -> Answer:
    if question in run.plan.refusals:
        return Answer(question, "refused", run.plan.refusals[question])
    if before is not None and before.status == "refused":
        return before
    began = time.perf_counter()
    try:
        _ANSWERS[question](run)
    except OSError:  # a full disk: mend it and resume
        raise
    except (BadInput, Inapplicable) as refusal:
        if question == "updates":  # its refusals are records of cases; this one is the user's to mend
            raise
        return Answer(question, "refused", str(refusal), time.perf_counter() - began)
    except Exception as crash:  # noqa: BLE001 - recorded as a failure, never as a result
        reason = f"{type(crash).__name__}: {crash} ({_place(crash)})"
        return Answer(question, "failed", reason, time.perf_counter() - began)
    return Answer(question, "answered", "", time.perf_counter() - began)


def _updates(run: _Run) -> None:
    cases = run.plan.every_case
    finished = 0.0
    run.watcher.started("updates", len(cases))

    def on_record(record: Record) -> None:
        nonlocal finished
        finished += 1
        run.watcher.moved("updates", waiting + finished, f"{record.case.name}: {result(record)}")

    def on_step(done: int, total: int) -> None:
        run.watcher.moved("updates", waiting + finished + (1 - OTHER_THAN_ATTACK) * done / total, "")

    keys = _known_keys(run.folder)
    waiting = sum(case.key() in keys for case in cases)
    elsewhere = {} if run.map is None else {"map": run.map}
    with watching(on_step):
        run_all(cases, load=run.load, folder=run.folder, resume=True, on_record=on_record, **elsewhere)


def _known_keys(folder: Path) -> set[str]:
    return {record.key for record in records.read(folder)} if records.exists(folder) else set()


def _training(run: _Run) -> None:
    plan = run.plan.training
    assert plan is not None, "a plan of the question training holds a training"
    run.watcher.started("training", plan.steps)
    if trained(run.folder):
        return
    main = run.plan.request.main

    def on_step(done: int, total: int) -> None:
        at_a_look = done % plan.every == 0
        run.watcher.moved("training", done, f"step {done} of {total}" if at_a_look else "")

    train(run.load(main), plan, run.folder, seed=main.seed, on_step=on_step)


def _split(run: _Run) -> None:
    plan = scan_records.read_plan(run.folder)
    run.watcher.started("split", len(plan.cuts))
    if scan_records.read_conclusion(run.folder) is not None:
        return
    done = sum(1 for record in scan_records.read(run.folder) if record.attack != DECODER)

    def on_record(record: CutRecord) -> None:
        nonlocal done
        done += record.attack != DECODER
        run.watcher.moved("split", done, record.said)

    ScanRun(run.load(restored(dict(plan.case))), plan, run.folder, on_record=on_record)()


def _defenses(run: _Run) -> None:
    trials = run.plan.trials
    done = 0
    run.watcher.started("defenses", len(trials))

    def on_record(record: DefenseRecord) -> None:
        nonlocal done
        done += 1
        run.watcher.moved("defenses", done, " + ".join(record.defenses) or "no defense")

    defend.run_trials(trials, load=run.load, folder=run.folder, resume=True, on_record=on_record)


_ANSWERS: Mapping[Question, Callable[[_Run], None]] = {
    "updates": _updates,
    "training": _training,
    "split": _split,
    "defenses": _defenses,
}


def _place(crash: BaseException) -> str:
    """The last line that was running."""
    frames = traceback.extract_tb(crash.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"
