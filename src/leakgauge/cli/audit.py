"""``leakgauge audit``: the four questions about a model, from options to a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from leakgauge.cli.options import ASKED, CI, DEFAULT_BUDGET, Resumable, Threat, opt, within
from leakgauge.cli.terminal import complain, shown
from leakgauge.errors import BadInput

if TYPE_CHECKING:
    from leakgauge.audit.findings import Findings
    from leakgauge.audit.plan import Plan
    from leakgauge.audit.questions import Question
    from leakgauge.audit.questions.answers import Answer
    from leakgauge.audit.request import Request
    from leakgauge.audit.run import CaseMap
    from leakgauge.audit.session import Load
    from leakgauge.integrations.plan_file import PlanFile


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Threat, CI, Resumable):
    PANEL: ClassVar[str] = "Effort"
    EXAMPLES: ClassVar[Sequence[str]] = (
        "leakgauge audit",
        "leakgauge audit my_model.py:make --data photos/ --mode train --batch-size 8 --budget 5m",
        "leakgauge audit timm:resnet18 --classes 10 --skip training",
        "leakgauge audit --resume --out leakgauge-runs/audit",
    )

    only: Sequence[str] = opt((), "Answer this question: updates, training, split, defenses or properties. Repeatable.")
    skip: Sequence[str] = opt((), "Leave this question out. Repeatable.")
    budget: str | None = opt(
        None,
        f"Time for the whole audit, such as 5m; it decides the number of steps. Default for your model: {DEFAULT_BUDGET}.",
    )
    training_steps: int | None = opt(None, "Steps of every training, instead of what the budget allows.")
    epochs: int | None = opt(
        None, "Epochs of the longest decoder training at a cut, instead of what the budget allows."
    )
    explain: bool = opt(
        False, "Only try single changes of one case (train mode, batch of 4) and show which flip its verdict."
    )
    workers: int = opt(1, "Processes that run cases side by side.", panel="Run", check=within(1))
    ray: bool = opt(False, "Run the cases as tasks of a Ray cluster.", panel="Run")


def audit(options: AuditOptions) -> int:
    """Answer four questions about a model and write one report.

    **updates**: what could be reconstructed from updates, and what would change that? **training**: how does leakage change
    while the model learns? **split**: where can it be cut safely? **defenses**: what does each one buy? Choose with --only and
    --skip.

    Without MODEL: the embedded models. With MODEL: eval and train mode where they differ, batches of 1 and 4, with and without
    each given defense, and single changes of one case (train mode, batch of 4); --mode and --batch-size fix one of them. With a
    plan file (audit.py, see leakgauge init): its cases on its victim and data; options given here override the file.
    """
    began = time.perf_counter()
    from leakgauge.audit import plan as plans
    from leakgauge.audit import whole
    from leakgauge.audit.session import Session
    from leakgauge.cli.run_folder import held, refuse_changes, refuse_unnamed_code, remember
    from leakgauge.cli.screen import AuditView
    from leakgauge.integrations import plan_file
    from leakgauge.integrations.setups import find

    options.promise()
    folder, asked, command = options.folder, options.asked(), options.command()
    written = None
    if options.model is not None and plan_file.is_plan(options.model):
        written = plan_file.read(options.model, seed=options.seed)
        options = replace(
            options, fail_over=options.fail_over or written.fail_over, budget=options.budget or written.budget
        )
        if not (options.only or options.skip):
            options = replace(options, only=written.only, skip=written.skip)
    spread, load = _map(options), Session(find)
    request = None if options.resume else request_of(options, written, load=load, command=command)
    with held(folder):
        if request is None:
            if written is not None:
                asked.pop("model", None)  # a plan file says which verdicts pass
            refuse_changes(folder, asked, kind="audit")
            found = plans.read(folder)
            named: dict[str, Any] = {"model": options.model, "data": options.data, "command": "audit"}
            refuse_unnamed_code(folder, plans.cases_of(found), **named)
        else:
            whole.refuse_second(folder)
            found = request
        if "updates" not in found.questions and options.judges:
            raise BadInput(
                "--fail-over, --json, --junit and --markdown judge the cases of the question updates, which is skipped"
            )
        if request is not None:
            remember(folder, asked)
        screen = Console(quiet=options.quiet)
        try:
            with AuditView(screen, found.questions) as view:
                ready, ended = whole.conduct(found, folder=folder, load=load, began=began, watcher=view, map=spread)
        except Exception:
            if not (folder / plans.FILE).exists():  # nothing was planned, so nothing is left
                (folder / ASKED).unlink(missing_ok=True)
            raise
        return _conclude(options, ready, ended, screen)


def request_of(options: AuditOptions, written: PlanFile | None, *, load: Load, command: str) -> Request:
    """What the options ask for; the embedded models, if they name no model, data or case.

    The cases of a plan file (``written``) replace the usual ones; its first is the one that counts.
    """
    from leakgauge.audit.case import Case
    from leakgauge.audit.questions import chosen
    from leakgauge.audit.request import Effort, ask, ask_embedded
    from leakgauge.audit.timing import seconds_of
    from leakgauge.integrations import plan_file
    from leakgauge.integrations.setups import smaller

    mode, batch_size, defenses = options.mode, options.batch_size, options.defense
    base = options.case()
    cases, steps = None, base.options.get("steps")
    if written is not None and written.cases is not None:
        given = options.given & {one.name for one in fields(Case)}
        cases = plan_file.settled(written, base, given=given, mode=mode, batch_size=batch_size, defenses=defenses)
        steps = steps or plan_file.steps_of(cases)
    effort = Effort(steps, options.training_steps, options.epochs)
    only, skip = options.only, options.skip
    questions = ("updates",) if options.explain and not only and not skip else chosen(only, skip)
    if options.explain and "updates" not in questions:
        raise BadInput("--explain tries changes of a case for the question updates, which is skipped")
    seconds = None if options.budget is None else seconds_of(options.budget)
    common: dict[str, Any] = {"questions": questions, "effort": effort, "command": command}
    named = options.model or options.data or mode or batch_size is not None or defenses or options.explain
    if not named and base == Case(seed=base.seed, device=base.device):
        return ask_embedded(budget=seconds, seed=base.seed, device=base.device, **common)
    if seconds is None and effort.leaves_open(questions):
        seconds = seconds_of(DEFAULT_BUDGET)
    return ask(
        base,
        load=load,
        mode=mode,
        batch_size=batch_size,
        defenses=defenses,
        cases=cases,
        explain=options.explain,
        models=smaller(base),
        budget=seconds,
        **common,
    )


def _map(options: AuditOptions) -> CaseMap | None:
    """How the cases are spread over processes or a cluster; a missing package is reported before anything is planned."""
    if options.ray:
        from leakgauge.integrations.ray import OnRay

        cluster = OnRay()
        cluster.check()
        return cluster
    if options.workers == 1:
        return None
    from leakgauge.audit.processes import Processes

    return Processes(options.workers)


def _conclude(options: AuditOptions, ready: Plan, ended: dict[Question, Answer], screen: Console) -> int:
    from leakgauge.audit import records, whole
    from leakgauge.audit.advice import to_do_as_text
    from leakgauge.audit.questions import defense_records as defenses
    from leakgauge.audit.questions import split_records, training
    from leakgauge.audit.wording import explanation, flipping
    from leakgauge.audit.wording.bracket import brackets
    from leakgauge.cli.screen import verdict_table
    from leakgauge.integrations.in_memory import Run
    from leakgauge.integrations.setups import smaller

    folder = options.folder
    run = Run(folder)
    nothing = not any(
        (folder / name).exists() for name in (records.FILE, training.FILE, split_records.FILE, defenses.FILE)
    )
    for question, answer in ended.items():
        if nothing and answer.status == "failed":
            why = " ".join(answer.reason.split())
            raise BadInput(f"the question {question} failed before anything was measured: {why}")
    found = run.records if "updates" in ended and records.exists(folder) else []
    own = {case.key() for case in ready.cases}
    asked = [record for record in found if record.key in own]
    explained = whole.explained(folder, ready, models=smaller(ready.request.main))
    path = run.report()
    if asked:
        screen.print(verdict_table(asked))
        for said in brackets(asked):
            screen.print(shown(said), soft_wrap=True, highlight=False)
    if explained is not None:
        text = explanation(explained) if options.explain else flipping(explained)
        screen.print(shown(text), soft_wrap=True, highlight=False)
    for note in (*ready.notes, *_sentences(run.findings, ended)):
        screen.print(shown(note), soft_wrap=True, highlight=False)
    to_do = to_do_as_text(run.findings, width=min(100, screen.width))
    screen.print(f"\n{shown(to_do)}\n", soft_wrap=True, highlight=False)
    screen.print(f"report: {shown(path)}", soft_wrap=True)
    failed = [answer for answer in ended.values() if answer.status == "failed"]
    for answer in failed:  # an error, which --quiet shows too
        complain(
            f"the question {answer.question} failed: {' '.join(answer.reason.split())}; try it again with --resume"
        )
    broken = bool(failed) or any(r.status == "error" for r in found)
    if "updates" not in ended or ended["updates"].status == "failed":
        return int(broken)  # cases are missing, so the files for machines still say that there is no verdict
    return options.judge(asked, folder=folder, broken=broken)


def _sentences(found: Findings, ended: dict[Question, Answer]) -> list[str]:
    """What the report says first about each question except updates, which has a table; or why it says nothing."""
    from leakgauge.audit.wording import statements

    said = {one.question: one.text for one in statements(found)}
    return [
        f"{question}: {said[question] if answer.status == 'answered' else f'{answer.status}: {answer.reason}'}"
        for question, answer in ended.items()
        if answer.status != "answered" or question != "updates"
    ]
