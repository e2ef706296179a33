"""What ``leakgauge audit`` does: from options to a request, the four questions under a progress view, what they came to."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from leakgauge.audit import (
    answers,
    defense_records,
    monitor_records,
    records,
    scan_records,
    step_time,
    usual_cases,
    whole,
    whole_plan,
)
from leakgauge.audit.advice import to_do_as_text
from leakgauge.audit.answers import Answer
from leakgauge.audit.case import Case
from leakgauge.audit.changes import Explanation, explain, ladder, pointless
from leakgauge.audit.files import DRAFTS, write_whole
from leakgauge.audit.findings import Findings, read_findings
from leakgauge.audit.pictures import FOLDER as PICTURES
from leakgauge.audit.planning import make_plan
from leakgauge.audit.processes import Processes
from leakgauge.audit.questions import Question, chosen
from leakgauge.audit.records import Record
from leakgauge.audit.run import CaseMap
from leakgauge.audit.scan_run import FEATURES
from leakgauge.audit.session import Load, Session
from leakgauge.audit.whole_plan import Effort, Request, WholePlan
from leakgauge.audit.wording import explanation, flipping, statements
from leakgauge.cli.attack import Gate, verdicts
from leakgauge.cli.options import DEFAULT_BUDGET, INTERRUPTED
from leakgauge.cli.run_folder import ASKED, make_folder, remember
from leakgauge.cli.screen import AuditView
from leakgauge.errors import BadInput, LeakgaugeError
from leakgauge.integrations.ray import OnRay
from leakgauge.integrations.setups import find, smaller
from leakgauge.report import page

NOMINAL = {"updates": 55.0, "training": 8.0, "split": 25.0, "defenses": 45.0}
"""Seconds of the audit of the embedded models without a budget, as measured on one core; others differ."""
MEASURED = (
    records.FILE, answers.FILE, monitor_records.FILE, scan_records.PLAN, scan_records.FILE, scan_records.CONCLUSION,
    defense_records.FILE,
)  # fmt: skip
EXPLANATION = "explanation.json"


@dataclass(frozen=True)
class Shown:
    """How the run is shown, judged and spread over processes."""

    gate: Gate
    quiet: bool = False
    explain: bool = False
    workers: int = 1
    ray: bool = False

    def __post_init__(self) -> None:
        if self.ray:
            OnRay().check()

    def map(self) -> CaseMap | None:
        return OnRay() if self.ray else Processes(self.workers) if self.workers != 1 else None


def request_of(
    base: Case,
    *,
    load: Load,
    plain: bool,
    mode: str | None,
    batch_size: int | None,
    defenses: Sequence[str],
    only: Sequence[str],
    skip: Sequence[str],
    explain: bool,
    effort: Effort,
    budget: str | None,
    cases: Sequence[Case] | None = None,
) -> Request:
    """What the options ask for. ``plain``: no model, no data, nothing of the set-up was named, so the embedded models are audited.

    ``cases`` are those of a plan file, which take the place of the usual ones; the first of them is the set-up that counts.
    """
    questions = ("updates",) if explain and not only and not skip else chosen(only, skip)
    if explain and "updates" not in questions:
        raise BadInput("--explain tries changes of a set-up, which the question updates does; it is skipped")
    split = replace(
        base,
        name="",
        attack=Case.attack,
        options={},
        reveal=Case.reveal,
        local_steps=1,
        local_lr=Case.local_lr,
        channel="",
    )
    seconds = None if budget is None else step_time.seconds_of(budget)
    common: dict[str, Any] = {"questions": questions, "effort": effort, "command": _command()}
    if plain:
        eight = tuple(usual_cases.default_cases(seed=base.seed, device=base.device))
        nominal = NOMINAL if effort == Effort() else {}
        split = replace(split, model="vgg")
        return Request(
            main=eight[0], cases=eight, ladder=(), split=split, budget=seconds, nominal=nominal, **common
        )  # fmt: skip
    if cases is not None:
        main, grid = cases[0], tuple(cases)
    else:
        wanted: dict[str, Any] = {"mode": mode or "train", "batch_size": 4 if batch_size is None else batch_size}
        main = replace(base, name="", defenses=tuple(defenses), **wanted)
        grid = tuple(usual_cases.variants(base, mode=mode, batch_size=batch_size, defenses=defenses))
    main.build_defenses()
    for case in (main, *grid):
        case.require_fit()
    changes: tuple[Case, ...] = ()
    if "updates" in questions:
        setup = load(main)
        changes = tuple(
            ladder(main, images=len(setup.images), models=smaller(main.model), without=pointless(setup.victim))
        )
    if explain:
        grid, changes = changes, ()
    undecided = {"updates": effort.steps, "training": effort.training, "split": effort.epochs}
    undecided["defenses"] = effort.steps if effort.training is None else effort.training
    if seconds is None and any(undecided[question] is None for question in questions):
        seconds = step_time.seconds_of(DEFAULT_BUDGET)
    return Request(main=main, cases=grid, ladder=changes, split=split, budget=seconds, **common)


def fresh(folder: Path, request: Request, shown: Shown, *, load: Load, asked: Mapping[str, str], began: float) -> int:
    """Plans and runs what is asked for, by the command line ``asked``. Returns the exit code."""
    _prepare(folder)
    whole_plan.save_request(folder, request)
    remember(folder, asked)
    return _run(folder, request, shown, load=load, began=began)


def resumed(folder: Path, shown: Shown, *, began: float) -> int:
    """Goes on with the run in ``folder``, wherever it was stopped; its own plan decides everything."""
    return _run(folder, whole_plan.read(folder), shown, load=Session(find), began=began)


def _prepare(folder: Path) -> None:
    make_folder(folder)
    if any((folder / name).exists() for name in (whole_plan.FILE, *MEASURED)):
        raise BadInput(f"{folder} already holds a run; go on with it by --resume, or choose another folder with --out")


def _run(folder: Path, found: WholePlan | Request, shown: Shown, *, load: Load, began: float) -> int:
    questions = found.questions
    if "updates" not in questions and shown.gate != Gate():
        raise BadInput(
            "--fail-over, --json, --junit and --markdown judge the cases of the question updates, which is skipped"
        )
    screen = Console(quiet=shown.quiet)
    _sweep(folder)
    try:
        with AuditView(screen, questions) as view:
            ready = found if isinstance(found, WholePlan) else _planned(folder, found, view, load=load, began=began)
            view.planned(ready.estimates)
            ended = whole.run(ready, folder=folder, load=load, watcher=view, map=shown.map())
        return _conclude(folder, ready, ended, shown, screen)
    except KeyboardInterrupt:
        _interrupted(folder)
        sys.exit(INTERRUPTED)


def _planned(folder: Path, request: Request, view: AuditView, *, load: Load, began: float) -> WholePlan:
    """Makes the plan. What an earlier attempt to make it had measured goes; a mistake of the user's leaves nothing behind."""
    _forget(folder)
    try:
        ready = make_plan(request, load=load, folder=folder, began=began, on_question=view.planning)
    except LeakgaugeError:
        _forget(folder)
        for name in (whole_plan.FILE, ASKED):
            (folder / name).unlink(missing_ok=True)
        raise
    whole_plan.save(folder, ready)
    return ready


def _forget(folder: Path) -> None:
    for name in MEASURED:
        (folder / name).unlink(missing_ok=True)
    for name in (PICTURES, FEATURES):
        shutil.rmtree(folder / name, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what a killed process left half-written; it never counted."""
    for left in (*folder.glob(DRAFTS), *folder.glob(f"{PICTURES}/{DRAFTS}")):
        left.unlink(missing_ok=True)


def _conclude(
    folder: Path, ready: WholePlan, ended: dict[Question, Answer], shown: Shown, screen: Console
) -> int:  # fmt: skip
    found = records.read(folder) if "updates" in ended else []
    own = {case.key() for case in ready.cases}
    asked = [record for record in found if record.key in own]
    explained = _explained(folder, ready, found)
    path = page.write(folder)
    if asked:
        screen.print(verdicts(asked))
    if explained is not None:
        text = explanation(explained) if shown.explain else flipping(explained)
        screen.print(escape(text), soft_wrap=True, highlight=False)
    findings = read_findings(folder)
    for note in (*ready.notes, *_sentences(findings, ended)):
        screen.print(escape(note), soft_wrap=True, highlight=False)
    to_do = to_do_as_text(findings, width=min(100, screen.width))
    screen.print(f"\n{escape(to_do)}\n", soft_wrap=True, highlight=False)
    screen.print(f"report: {path}", soft_wrap=True)
    code = shown.gate(asked, folder=folder) if "updates" in ended else 0
    broken = any(answer.status == "failed" for answer in ended.values()) or any(r.status == "error" for r in found)
    return code or int(broken)


def _explained(folder: Path, ready: WholePlan, found: Sequence[Record]) -> Explanation | None:
    """Which single changes flip the verdict of the set-up that counts; kept with the run."""
    main = next((case for case in ready.every_case if _same(case, ready.request.main)), None)
    if not found or main is None:
        return None
    made = explain(found, main=main, models=smaller(main.model))
    write_whole(folder / EXPLANATION, json.dumps(made.summary(), indent=1).encode())
    return made


def _same(case: Case, other: Case) -> bool:
    """Whether they differ in nothing but the steps, which a budget may have planned."""
    return replace(case, options={**case.options, "steps": 0}).content_key() == replace(
        other, options={**other.options, "steps": 0}
    ).content_key()  # fmt: skip


def _sentences(found: Findings, ended: dict[Question, Answer]) -> list[str]:
    """What the first page of the report says of each question but updates, which has a table; or why it says nothing."""
    answers = {one.question: one.text for one in statements(found)}
    return [
        f"{question}: {answers[question] if answer.status == 'answered' else f'{answer.status}: {answer.reason}'}"
        for question, answer in ended.items()
        if answer.status != "answered" or question != "updates"
    ]


def _interrupted(folder: Path) -> None:
    sys.stderr.write(
        f"leakgauge: interrupted; finished cases are kept, go on with: leakgauge audit --resume --out {folder}\n"
    )


def _command() -> str:
    return shlex.join(["leakgauge", *sys.argv[1:]])


__all__ = ["Shown", "fresh", "request_of", "resumed"]
