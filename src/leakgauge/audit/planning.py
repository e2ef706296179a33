"""Plans a whole audit before it starts: what can be answered, and how many iterations of each question fit into the time."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from leakgauge.audit import case_cost, defend, scan_records
from leakgauge.audit.case import Case
from leakgauge.audit.defense_budget import cost_of_trials, counted, fit_trials
from leakgauge.audit.first_pass import SHARE
from leakgauge.audit.questions import Question
from leakgauge.audit.scan_run import Asked, ScanRun, plan_scan
from leakgauge.audit.session import Load, Setup, check_fits
from leakgauge.audit.training import TrainingPlan, plan_training, trial_cost
from leakgauge.audit.whole_plan import Effort, Request, WholePlan
from leakgauge.errors import BadInput, Inapplicable

SHARES: Mapping[Question, float] = {"updates": 0.45, "training": 0.10, "split": 0.20, "defenses": 0.25}
"""How the time of a budget is shared out. What one question cannot use goes to those that are planned after it."""
ORDER: tuple[Question, ...] = ("split", "training", "defenses", "updates")
"""The order of planning: what can take any number of iterations comes last and gets the rest."""
FINISH = 2.0
"""Seconds for the report."""
TRAINING_STEPS, EPOCHS, DEFENSE_STEPS, DEFENSE_TRAINING_STEPS = 300, 12, 200, 60
"""Effort without a budget: of the monitored training, of a decoder, of the attack and of the training under each defense."""


@dataclass
class _Draft:
    request: Request
    load: Load
    folder: Path
    began: float
    setup: Setup
    estimates: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    found: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def allotted(self, question: Question) -> float:
        """Seconds for a question: its share of what is neither spent nor promised."""
        assert self.request.budget is not None, "only a budget is shared out"
        spent = time.perf_counter() - self.began
        left = self.request.budget - FINISH - spent - sum(self.estimates.values())
        open_: list[Question] = [q for q in ORDER[ORDER.index(question) :] if q in self.request.questions]
        return max(0.0, left) * SHARES[question] / sum(SHARES[q] for q in open_)


def make_plan(
    request: Request, *, load: Load, folder: Path, began: float, on_question: Callable[[Question], None] | None = None
) -> WholePlan:
    """What the audit will do. ``began`` is the time (perf_counter) from which the budget counts.

    A question that cannot be answered is refused here, with its reason, and the others go on; where none is left, that
    reason is the user's to mend.
    """
    draft = _Draft(request, load, folder, began, load(request.main))
    check_fits(draft.setup)
    if "updates" in request.questions:
        case_cost.rehearse([*request.cases, *request.ladder], load=load)
    plan = {"split": _split, "training": _training, "defenses": _defenses, "updates": _updates}
    for question in ORDER:
        if question not in request.questions:
            continue
        if on_question is not None:
            on_question(question)
        try:
            plan[question](draft)
        except (BadInput, Inapplicable) as refusal:
            if question == "updates":  # it has been rehearsed: what is wrong here is not the question's fault
                raise
            draft.refusals[question] = str(refusal)
    if len(draft.refusals) == len(request.questions):
        raise BadInput(draft.refusals[request.questions[0]])
    nominal = {q: s for q, s in request.nominal.items() if q in request.questions and q not in draft.refusals}
    return WholePlan(
        request,
        **draft.found,  # pyright: ignore[reportArgumentType]
        refusals=draft.refusals,
        estimates={q: round(s, 1) for q, s in (draft.estimates or nominal).items()},
        planning=round(time.perf_counter() - began, 1),
        notes=tuple(draft.notes),
    )


def _split(draft: _Draft) -> None:
    request, fixed = draft.request, draft.request.effort.epochs
    setup = draft.load(replace(request.split, mode="eval"))
    timed = request.budget is not None and fixed is None
    asked = Asked(epochs=None if timed else EPOCHS if fixed is None else fixed)
    command = again(request.split, "split", epochs=asked.epochs)
    plan = plan_scan(setup, request.split, asked, draft.folder, command=command, audited=True)
    if not timed:
        draft.found["epochs"] = plan.epochs
        return
    run = ScanRun(setup, plan, draft.folder)
    curve = run.ridge(SHARE * draft.allotted("split"))
    run.plan = replace(run.plan, budget=max(0.1, draft.allotted("split")))
    draft.estimates["split"] = run.decide(curve)
    command = again(request.split, "split", epochs=run.plan.epochs)
    run.plan = replace(run.plan, command=command)
    scan_records.save_plan(draft.folder, run.plan)
    draft.found["epochs"] = run.plan.epochs


def _training(draft: _Draft) -> None:
    request, steps = draft.request, draft.request.effort.training

    def planned(steps: int) -> TrainingPlan:
        command = again(request.main, "training", training=steps)
        return plan_training(draft.setup, request.main, steps=steps, command=command)

    plan = planned(TRAINING_STEPS if steps is None else steps)
    if request.budget is not None:
        with tempfile.TemporaryDirectory() as folder:
            cost = trial_cost(draft.setup, plan, Path(folder), seed=request.main.seed)
        plan = planned(cost.affordable(draft.allotted("training"))) if steps is None else plan
        draft.estimates["training"] = cost.seconds(plan.steps)
    draft.found["training"] = plan


def _defenses(draft: _Draft) -> None:
    request, effort = draft.request, draft.request.effort
    steps, training = effort.steps or DEFENSE_STEPS, effort.training or DEFENSE_TRAINING_STEPS
    trials = defend.plan_trials(draft.setup, request.main, steps=steps, train_steps=training)
    if request.budget is not None:
        cost = cost_of_trials(draft.setup, request.main, load=draft.load)
        seconds = draft.allotted("defenses")
        fitted = fit_trials(draft.setup, request.main, seconds, load=draft.load, cost=cost)
        trials = tuple(_with_effort(trial, effort) for trial in fitted)
        last = trials[-1]
        draft.estimates["defenses"] = cost.seconds(
            counted(trials), steps=int(last.case.options.get("steps", 0)), train_steps=last.train_steps
        )
    draft.found["trials"] = trials


def _with_effort(trial: defend.Trial, effort: Effort) -> defend.Trial:
    """The trial with what was decided beforehand in place of what fits into the time."""
    case = trial.case if effort.steps is None else case_cost.with_steps(trial.case, effort.steps)
    return replace(trial, case=case, train_steps=trial.train_steps if effort.training is None else effort.training)


def _updates(draft: _Draft) -> None:
    request = draft.request
    cases, ladder = request.cases, request.ladder
    if request.budget is not None:
        plan = WholePlan(request, cases=cases, ladder=ladder)
        found = case_cost.costs(plan.every_case, load=draft.load)
        asked = {case.content_key() for case in cases}
        own = [cost for cost, case in zip(found, plan.every_case, strict=True) if case.content_key() in asked]
        fixed, seconds = request.effort.steps, draft.allotted("updates")
        steps = case_cost.affordable(found, seconds) if fixed is None else fixed
        if fixed is None and ladder and case_cost.seconds_of(found, steps) > 1.1 * seconds:
            draft.notes.append("single changes of the set-up were left out: there is no time for them")
            found, ladder = own, ()
            steps = case_cost.affordable(found, seconds)
        if fixed is None:
            cases, ladder = (tuple(case_cost.with_steps(case, steps) for case in group) for group in (cases, ladder))
        draft.estimates["updates"] = case_cost.seconds_of(found, steps)
    draft.found |= {"cases": cases, "ladder": ladder}


def again(case: Case, question: Question, **effort: int | None) -> str:
    """The command line that answers this question alone, with this effort."""
    words = ["leakgauge", "audit", case.model, "--only", question, "--seed", str(case.seed), *case.options_of_setup()]
    for name, value in effort.items():
        option = {"training": "--training-steps", "epochs": "--epochs"}[name]
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)
