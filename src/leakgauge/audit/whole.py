"""Runs a whole audit: a plan, then one question after another, each resumable by its own file, each refusal recorded."""

from __future__ import annotations

import json
import math
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from leakgauge.audit import evidence, records
from leakgauge.audit.case import Case, accepted_options
from leakgauge.audit.control import Extent
from leakgauge.audit.files import DRAFTS, PICTURES, write_whole
from leakgauge.audit.pace import Pace
from leakgauge.audit.phrasing import duration, few, plural
from leakgauge.audit.plan import FILE, Plan, save
from leakgauge.audit.planner import Planner, ends
from leakgauge.audit.questions import Question, answers, defense_records, defenses, properties, split_records, training
from leakgauge.audit.questions.answers import Answer
from leakgauge.audit.questions.defense_records import DefenseRecord
from leakgauge.audit.questions.split import FEATURES, ScanRun
from leakgauge.audit.questions.split_records import DECODER, CutRecord
from leakgauge.audit.questions.training import train, trained
from leakgauge.audit.questions.updates import Explanation, explain, same_work
from leakgauge.audit.records import Record
from leakgauge.audit.request import Request
from leakgauge.audit.run import CaseMap, Until, here, run_all
from leakgauge.audit.session import Load, keep_evidence
from leakgauge.audit.wording import result
from leakgauge.errors import BadInput, CannotWrite, Inapplicable, one_line
from leakgauge.inversion import watching

EXPLANATION = "explanation.json"
OTHER_THAN_ATTACK = 0.05
"""Of a case, the part that follows its steps: null run and scoring."""


MEASURED = (
    evidence.FILE,
    records.FILE,
    answers.FILE,
    training.FILE,
    split_records.PLAN,
    split_records.FILE,
    split_records.CONCLUSION,
    defense_records.FILE,
    properties.FILE,
)
"""What an audit measures into its folder, pictures aside."""


class Watcher:
    """Follows an audit; this one does not look. ``done`` counts parts of the question, also fractions of one."""

    def planning(self, question: Question) -> None: ...
    def planned(self, estimates: Mapping[str, float]) -> None: ...
    def started(self, question: Question, parts: int) -> None: ...
    def moved(self, question: Question, done: float, said: str) -> None: ...
    def ended(self, answer: Answer) -> None: ...


@dataclass
class _Run:
    """``plan`` follows what is done with time that is left, of which ``planner`` knows."""

    plan: Plan
    folder: Path
    load: Load
    watcher: Watcher
    map: CaseMap | None
    until: float = math.inf
    pace: Pace | None = None
    done: int = 0
    """Cases of updates that are attacked."""


class _TimeIsOver(Exception):
    """Ends a question whose time was over before all of it was done; what is on record counts."""


def refuse_second(folder: Path) -> None:
    """Refuses a folder that holds a run already."""
    if any((folder / name).exists() for name in (FILE, *MEASURED)):
        raise BadInput(f"{folder} already holds a run; resume it with --resume, or choose another folder (--out)")


def conduct(
    asked: Plan | Request,
    *,
    folder: Path,
    load: Load,
    began: float,
    watcher: Watcher | None = None,
    map: CaseMap | None = None,
) -> tuple[Plan, dict[Question, Answer]]:
    """Plans what is asked, unless that is a plan already, and does what is not done yet. ``began`` starts the clock of a budget.

    The caller is the only writer of the folder (:func:`leakgauge.audit.files.sole_writer`).
    """
    watcher = Watcher() if watcher is None else watcher
    for left in (*folder.glob(DRAFTS), *folder.glob(f"{PICTURES}/{DRAFTS}")):
        left.unlink(missing_ok=True)  # a killed process left it half-written; it never counted
    if isinstance(asked, Plan):
        _check_together(asked, folder)
    planner = None
    if isinstance(asked, Plan):
        plan = asked
    else:
        plan, planner = _planned(asked, folder=folder, load=load, began=began, watcher=watcher)
    watcher.planned(plan.estimates)
    if any(question not in answers.read(folder) for question in plan.questions):
        keep_evidence(folder, _sources(plan), load)
    until = math.inf
    if isinstance(asked, Request) and asked.budget is not None and asked.effort.leaves_open(asked.questions):
        until = ends(began, asked.budget)  # who resumes a run, or fixes the effort, wants all of it
    return carry_out(plan, folder=folder, load=load, watcher=watcher, map=map, until=until, planner=planner)


def _check_together(plan: Plan, folder: Path) -> None:
    """Refuses a folder whose files are of different runs: what is on record must be what was planned."""
    apart = "and {other} are not of one run; start another audit with another --out"
    if (
        "split" in plan.questions
        and split_records.exists(folder)
        and split_records.read_plan(folder).case != plan.request.split
    ):
        raise BadInput(f"{folder / FILE} {apart.format(other=split_records.PLAN)}")
    found = [(record.key, record.case.key(), records.FILE) for record in records.STORE.read_if_there(folder)]
    found += [
        (record.key, record.trial.key(), defense_records.FILE) for record in defense_records.STORE.read_if_there(folder)
    ]
    planned = {*(case.key() for case in plan.every_case), *(trial.key() for trial in plan.trials)}
    for key, own, name in found:
        if key in planned and key != own:
            raise BadInput(f"{folder / FILE} {apart.format(other=name)}")


def _sources(plan: Plan) -> list[Case]:
    """The cases that the questions are asked about."""
    asked = {"updates": plan.every_case, "training": (plan.request.main,), "split": (plan.request.split,)}
    asked["defenses"] = asked["properties"] = (plan.request.main,)
    return [case for question in plan.questions if question not in plan.refusals for case in asked[question]]


def _planned(request: Request, *, folder: Path, load: Load, began: float, watcher: Watcher) -> tuple[Plan, Planner]:
    """Makes the plan, without what an earlier attempt had measured; a user's mistake leaves nothing in the folder."""
    save(folder, request)
    _forget(folder)
    try:
        planner = Planner(request, load, folder, began)
        plan = planner.plan(watcher.planning)
    except CannotWrite:  # the user makes room and resumes
        raise
    except Exception:  # a mistake or a crash; what cannot be planned cannot be resumed either
        _forget(folder)
        (folder / FILE).unlink(missing_ok=True)
        raise
    save(folder, plan)
    return plan, planner


def _forget(folder: Path) -> None:
    for name in MEASURED:
        (folder / name).unlink(missing_ok=True)
    for name in (PICTURES, FEATURES):
        shutil.rmtree(folder / name, ignore_errors=True)


def explained(folder: Path, plan: Plan, *, models: Mapping[str, str] | None = None) -> Explanation | None:
    """Which single changes flip the verdict of the set-up that counts; kept with the run. None where it has no record."""
    found = records.read(folder) if records.exists(folder) else []
    main = next((case for case in plan.every_case if same_work(case) == same_work(plan.request.main)), None)
    if main is None or all(record.case.content_key() != main.content_key() for record in found):
        return None
    made = explain(found, main=main, models=models)
    write_whole(folder / EXPLANATION, json.dumps(made.summary(), indent=1).encode())
    return made


def carry_out(
    plan: Plan,
    *,
    folder: Path,
    load: Load,
    watcher: Watcher | None = None,
    map: CaseMap | None = None,
    until: float = math.inf,
    planner: Planner | None = None,
) -> tuple[Plan, dict[Question, Answer]]:
    """Does what the plan says and is not done yet; returns the plan as it was carried out, and what became of every question.

    What is done is known from each question's own file, so the same call resumes a run that was stopped anywhere. A
    question that refuses or crashes is recorded as such, and the next one runs. ``map`` runs the cases of ``updates``
    elsewhere. After the time ``until`` (perf_counter) nothing begins; what was left out is named. Time that is left before that is
    given to further steps and to what was left out, where the ``planner`` of the plan is at hand.
    """
    this = _Run(plan, folder, load, Watcher() if watcher is None else watcher, map, until)
    if planner is not None and until < math.inf and "updates" in plan.questions and plan.request.effort.steps is None:
        this.pace = Pace(planner, folder, partial(_one_more, this), elsewhere=map is not None)
    known = answers.read(folder)
    for question in plan.questions:
        if this.pace is None or question not in plan.waiting:
            _settle(this, question, known)
    if this.pace is not None:

        def ask(changed: Plan, question: Question) -> Plan:
            this.plan = changed
            _settle(this, question, known)
            return this.plan

        this.plan = this.pace.spend(this.plan, ask)
        this.plan = replace(this.plan, notes=this.pace.planner.notes(this.plan))
        save(folder, this.plan)
        records.sort(folder, [case.key() for case in this.plan.every_case])
        for question in plan.questions:
            if question not in known or (question == "updates" and known[question].status == "refused"):
                _settle(this, question, known)
    return this.plan, {question: known[question] for question in plan.questions}


def _settle(run: _Run, question: Question, known: dict[Question, Answer]) -> None:
    """Answers a question and keeps what became of it."""
    before = known.get(question)
    answer = _answered(run, question, before)
    same = before is not None and before.status == answer.status
    known[question] = answer = before if before is not None and same else answers.append(run.folder, answer)
    run.watcher.ended(answer)


def _one_more(run: _Run, case: Case, controls: Extent) -> Record:
    """Attacks one case and keeps its record."""
    where: CaseMap = here if run.map is None else run.map
    (record,) = run_all(
        [case],
        load=run.load,
        folder=run.folder,
        resume=True,
        map=where,
        on_record=partial(_attacked, run),
        controls=controls,
    )
    return record


def _answered(run: _Run, question: Question, before: Answer | None) -> Answer:
    if question in run.plan.refusals:
        return Answer(question, "refused", run.plan.refusals[question])
    if before is not None and before.status == "refused" and (run.pace is None or question != "updates"):
        return before
    began = time.perf_counter()
    if began > run.until and question != "updates":
        return Answer(
            question, "refused", f"the time was over; it takes about {duration(run.plan.estimates.get(question, 0.0))}"
        )
    try:
        _ANSWERS[question](run)
    except _TimeIsOver as over:
        return Answer(question, "refused", f"the time was over: {over}", time.perf_counter() - began)
    except CannotWrite:  # a full disk: the user makes room and resumes
        raise
    except (BadInput, Inapplicable) as refusal:
        if question == "updates":  # its refusals are records of cases; this one is for the user to fix
            raise
        return Answer(question, "refused", str(refusal), time.perf_counter() - began)
    except Exception as crash:  # noqa: BLE001 - recorded as a failure, never as a result
        reason = f"{one_line(crash)} ({_place(crash)})"
        return Answer(question, "failed", reason, time.perf_counter() - began)
    return Answer(question, "answered", "", time.perf_counter() - began)


def _updates(run: _Run) -> None:
    main = same_work(run.plan.request.main)
    cases = sorted(run.plan.every_case, key=lambda case: same_work(case) != main)  # first what counts
    run.watcher.started("updates", len(cases))
    keys = _known_keys(run.folder)
    run.done = sum(case.key() in keys for case in cases)
    where: CaseMap = here if run.map is None else run.map
    timed = [case for case in cases if "steps" in accepted_options(case)]
    closed = [case for case in cases if case not in timed]  # seconds: here, and never left out
    run_cases = partial(
        run_all,
        load=run.load,
        folder=run.folder,
        resume=True,
        on_record=partial(_attacked, run),
        controls=run.plan.controls,
    )
    with watching(partial(_stepped, run)):
        if run.pace is not None and run.map is None:
            planned = [*timed[:1], *closed, *timed[1:]]
            run.plan = run.pace.first_look(run.plan, [case for case in planned if case.key() not in keys])
        else:
            run_cases(closed)
            run_cases(timed, map=Until(run.until, where))
    records.sort(run.folder, [case.key() for case in run.plan.every_case])
    done = {record.key for record in records.read(run.folder)} if records.exists(run.folder) else set[str]()
    late = [case.short_name() for case in run.plan.every_case if case.key() not in done]
    if late:
        raise _TimeIsOver(
            f"{plural(len(late), 'set-up')} of {len(cases)} {'was' if len(late) == 1 else 'were'} not attacked ({few(late)})"
        )


def _attacked(run: _Run, record: Record) -> None:
    run.done += 1
    run.watcher.moved("updates", run.done, f"{record.case.name}: {result(record)}")


def _stepped(run: _Run, done: int, total: int) -> None:
    run.watcher.moved("updates", run.done + (1 - OTHER_THAN_ATTACK) * done / total, "")


def _known_keys(folder: Path) -> set[str]:
    return {r.key for r in records.read(folder) if not r.broken} if records.exists(folder) else set()


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
    plan = split_records.read_plan(run.folder)
    run.watcher.started("split", len(plan.cuts))
    if split_records.read_conclusion(run.folder) is not None:
        return
    done = sum(1 for record in split_records.read(run.folder) if record.attack != DECODER)

    def on_record(record: CutRecord) -> None:
        nonlocal done
        done += record.attack != DECODER
        run.watcher.moved("split", done, record.said)

    ScanRun(run.load(plan.case), plan, run.folder, on_record=on_record)()


def _defenses(run: _Run) -> None:
    trials = run.plan.trials
    done = 0
    run.watcher.started("defenses", len(trials))

    def on_record(record: DefenseRecord) -> None:
        nonlocal done
        done += 1
        run.watcher.moved("defenses", done, " + ".join(record.defenses) or "no defense")

    found = defenses.run_trials(
        trials, load=run.load, folder=run.folder, resume=True, skip_pointless=True, until=run.until, on_record=on_record
    )
    if len(found) < len(trials) and not defenses.pointless(found[0]):
        raise _TimeIsOver(f"{len(trials) - len(found)} of {plural(len(trials), 'trial')} were not run")


def _properties(run: _Run) -> None:
    plan = run.plan.properties
    assert plan is not None, "a plan of the question properties holds its probes"
    total = 2 * len(properties.PROPERTIES) * plan.updates
    run.watcher.started("properties", total)
    if properties.exists(run.folder) and len(properties.read(run.folder)) == len(properties.PROPERTIES):
        return

    def on_update(done: int) -> None:
        run.watcher.moved("properties", done, f"update {done} of {total}" if done % plan.updates == 0 else "")

    properties.probe(run.load(run.plan.request.main), run.plan.request.main, plan, run.folder, on_update=on_update)


_ANSWERS: Mapping[Question, Callable[[_Run], None]] = {
    "updates": _updates,
    "training": _training,
    "split": _split,
    "defenses": _defenses,
    "properties": _properties,
}


def _place(crash: BaseException) -> str:
    """The last line that was running."""
    frames = traceback.extract_tb(crash.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "unknown place"
