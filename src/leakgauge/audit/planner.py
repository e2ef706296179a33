"""Makes the plan of an audit: what can be answered, and how many iterations of each question fit into the time."""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from leakgauge.audit.case import SETUP, Case, accepted_options, enough_steps, with_steps
from leakgauge.audit.control import EXTENTS, GIVEN, Extent
from leakgauge.audit.phrasing import duration, plural
from leakgauge.audit.plan import Plan
from leakgauge.audit.questions import Question
from leakgauge.audit.questions import split_records as scan_records
from leakgauge.audit.questions.defense_records import Trial
from leakgauge.audit.questions.defenses import cost_of_trials, counted, fit_trials, plan_trials
from leakgauge.audit.questions.properties import FEWEST_UPDATES, UPDATES, cost_of_probes, plan_properties
from leakgauge.audit.questions.split import SHARE, Asked, ScanRun, plan_scan
from leakgauge.audit.questions.training import FEWEST_STEPS as FEWEST_TRAINING
from leakgauge.audit.questions.training import MOST_STEPS as MOST_TRAINING
from leakgauge.audit.questions.training import TrainingPlan, plan_training, trial_cost
from leakgauge.audit.questions.updates import same_work
from leakgauge.audit.request import Effort, Request
from leakgauge.audit.session import Load, Setup, check_runs, set_up
from leakgauge.audit.timing import Cost, alike, costs, elapsed, estimated
from leakgauge.core import Tokens
from leakgauge.errors import BadInput, Inapplicable

SHARES: dict[Question, float] = {"updates": 0.45, "training": 0.10, "split": 0.20, "defenses": 0.25, "properties": 0.10}
"""How the time of a budget is shared out. What one question cannot use goes to those that are planned after it."""
ORDER: tuple[Question, ...] = ("split", "training", "properties", "defenses", "updates")
"""The order of planning: what can take any number of iterations comes last and gets the rest, at least what a verdict needs."""
TRYING = 0.05
"""Share of the budget for trying set-ups; those that were not tried by then are estimated from those that were."""
REHEARSAL = 0.02
"""Share of the budget for setting up each case once, to find mistakes early; what is late meets them in its run."""
FIRST = 0.45
"""Share of the time of updates for a first look at every set-up. The rest goes to those that are inconclusive after it, with a cost that
is known by then. Where a first look at this price could not be judged, there is one look for almost all the time."""
WHOLE = 0.9
"""Share of the time of updates for a single look."""
GLANCE = 0.25
"""Share for the first look at a set-up that cannot be judged in the time there is: it finds out what a step costs."""
FEW = 3
"""Fewest steps of such a look: with fewer the time of a step is not known."""
PASSES = 24
"""Forward passes over all images that the shortest scan of cuts costs: three cuts by regression, least squares and decoders."""
FINISH, FINISH_SHARE = 2.0, 0.02
"""Seconds for the report, and the share of the budget that comes on top: more is found in more time."""
TRAINING_STEPS, EPOCHS, DEFENSE_STEPS, DEFENSE_TRAINING_STEPS = 300, 12, 200, 60
"""Effort without a budget: of the monitored training, of a decoder, of the attack and of the training under each defense."""
SLACK = 1.1
"""By how much a promise may exceed the time there is."""
FEWEST_TRIALS = 5
"""Of defenses, the undefended one among them."""
CONTROL_SHARE = 0.35
"""Of the time of updates, for controls with starts near the truth; where these would take more, they are left out."""
JUDGED = 0.5
"""Share of the time for set-ups that can be judged, where the one that counts cannot."""


class NoTime(Inapplicable):
    """A question takes at least ``least`` seconds, for which there is no time."""

    def __init__(self, question: Question, least: float, there_is: float, budget: float) -> None:
        super().__init__(
            f"left out: it takes at least {duration(least)}, and of the {duration(budget)} there are "
            f"{duration(there_is)} for it; give more time or ask it alone (--only {question})"
        )
        self.least = least


@dataclass
class Planner:
    """Plans an audit, and while it runs what else there is time for. ``began`` is the time (perf_counter) from which the budget counts."""

    request: Request
    load: Load
    folder: Path
    began: float
    estimates: dict[str, float] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    reserved: float = 0.0
    worked: float = 0.0
    share: float | None = None
    """Of the time that is left, for the question that is planned now; None if the usual share counts."""

    def __post_init__(self) -> None:
        self.setup: Setup = self.load(self.request.main)
        check_runs(self.setup)

    # Time.

    def left(self) -> float:
        """Seconds that are neither spent nor promised."""
        assert self.request.budget is not None, "only a budget is shared out"
        return max(0.0, ends(self.began, self.request.budget) - time.perf_counter() - sum(self.estimates.values()))

    def allotted(self, question: Question) -> float:
        """Seconds for a question: its share of what is left. Updates keep what a verdict on the user's own set-ups needs."""
        left = self.left()
        if self.share is not None:
            return self.share * left
        open_: list[Question] = [q for q in ORDER[ORDER.index(question) :] if q in self.request.questions]
        share = left * SHARES[question] / sum(SHARES[q] for q in open_)
        return share if question == "updates" else max(0.0, min(share, left - self.reserved))

    def afford(self, question: Question, least: float) -> None:
        """Refuses a question that would take longer than there is time for it."""
        allotted = self.allotted(question)
        if least > SLACK * allotted:
            assert self.request.budget is not None
            raise NoTime(question, least, allotted, self.request.budget)

    def cost(self, case: Case) -> Cost:
        """What the case costs, as far as it is known or can be estimated."""
        return self.costs[alike(case)]

    # The plan.

    def plan(self, on_question: Callable[[Question], None] | None = None) -> Plan:
        """What the audit will do.

        A question that cannot be answered is refused here, with its reason, and the others remain; where none is left, that reason is
        raised for the user to fix.
        """
        request, refusals, waiting = self.request, dict[str, str](), dict[str, float]()
        if "updates" in request.questions:
            until = math.inf if request.budget is None else time.perf_counter() + REHEARSAL * request.budget
            rehearse([*request.cases, *request.ladder], load=self.load, until=until)
            if request.budget is not None:
                self._measure()
        for question in ORDER:
            if question not in request.questions:
                continue
            if on_question is not None:
                on_question(question)
            try:
                self._ask(question)
            except (BadInput, Inapplicable) as refusal:
                if question == "updates":  # it has been rehearsed: what is wrong here is not the question's fault
                    raise
                refusals[question] = str(refusal)
                if isinstance(refusal, NoTime):
                    waiting[question] = refusal.least
        if len(refusals) == len(request.questions):
            raise BadInput(refusals[request.questions[0]])
        nominal = {q: s for q, s in request.nominal.items() if q in request.questions and q not in refusals}
        made = Plan(
            request,
            **self.found,
            refusals=refusals,
            estimates={q: round(s, 1) for q, s in (self.estimates or nominal).items()},
            planning=round(time.perf_counter() - self.began - self.worked, 1),
            waiting=waiting,
        )
        return replace(made, notes=self.notes(made))

    def also(self, plan: Plan, question: Question, share: float) -> Plan:
        """The plan with a question that was left out, asked in this share of the time that is left.

        :class:`NoTime` where that is not enough, and another refusal where it turns out that it cannot be answered.
        """
        self.estimates, self.share, self.found = {}, share, {}
        self._ask(question)
        refusals, waiting = dict(plan.refusals), dict(plan.waiting)
        del refusals[question], waiting[question]
        estimates = {**plan.estimates, **{q: round(s, 1) for q, s in self.estimates.items()}}
        return replace(plan, **self.found, refusals=refusals, waiting=waiting, estimates=estimates)

    def _ask(self, question: Question) -> None:
        if question != "updates" and isinstance(self.setup.victim.space, Tokens):
            other = (
                "leakgauge scan says where a language model may be cut" if question == "split" else "it takes images"
            )
            raise Inapplicable(f"not asked about text models: {other}")
        {
            "split": self._split,
            "training": self._training,
            "properties": self._properties,
            "defenses": self._defenses,
            "updates": self._updates,
        }[question]()

    def _split(self) -> None:
        request, fixed = self.request, self.request.effort.epochs
        setup = self.load(replace(request.split, mode="eval"))
        timed = request.budget is not None and fixed is None
        asked = Asked(epochs=None if timed else EPOCHS if fixed is None else fixed)
        command = again(request.split, "split", "--epochs", asked.epochs)
        if timed:
            self.afford("split", PASSES * _one_pass(setup))
        plan = plan_scan(setup, request.split, asked, self.folder, command=command, audited=True)
        if timed:
            began = time.perf_counter()
            run = ScanRun(setup, plan, self.folder)
            curve = run.ridge(SHARE * self.allotted("split"))
            run.plan = replace(run.plan, budget=max(0.1, self.allotted("split")))
            self.estimates["split"] = run.decide(curve)
            plan = replace(run.plan, command=again(request.split, "split", "--epochs", run.plan.epochs))
            scan_records.save_plan(self.folder, plan)
            self.worked += time.perf_counter() - began  # these attacks count, they are not tried again
        self.found["epochs"] = plan.epochs

    def _training(self) -> None:
        request, steps = self.request, self.request.effort.training

        def planned(steps: int) -> TrainingPlan:
            command = again(request.main, "training", "--training-steps", steps)
            return plan_training(self.setup, request.main, steps=steps, command=command)

        plan = planned(TRAINING_STEPS if steps is None else steps)
        if request.budget is not None:
            known = self.costs.get(alike(request.main))
            if known is not None and steps is None:  # a training step is no longer than a replay
                self.afford("training", FEWEST_TRAINING * known.step)
            with tempfile.TemporaryDirectory() as folder:
                cost = trial_cost(self.setup, plan, Path(folder), seed=request.main.seed)
            if steps is None:
                self.afford("training", cost.seconds(FEWEST_TRAINING))
                plan = planned(cost.affordable(self.allotted("training"), fewest=FEWEST_TRAINING, most=MOST_TRAINING))
            self.estimates["training"] = cost.seconds(plan.steps)
        self.found["training"] = plan

    def _properties(self) -> None:
        request = self.request
        plan = plan_properties(self.setup, request.main, command=again(request.main, "properties", "", None))
        if request.budget is not None:
            cost = cost_of_probes(self.setup, request.main, plan)
            self.afford("properties", cost.seconds(FEWEST_UPDATES))
            updates = cost.affordable(self.allotted("properties"), fewest=FEWEST_UPDATES, most=UPDATES)
            plan = replace(plan, updates=min(updates, UPDATES))
            self.estimates["properties"] = cost.seconds(plan.updates)
        self.found["properties"] = plan

    def _defenses(self) -> None:
        request, effort = self.request, self.request.effort
        steps, training = effort.steps or DEFENSE_STEPS, effort.training or DEFENSE_TRAINING_STEPS
        trials = plan_trials(self.setup, request.main, steps=steps, train_steps=training)
        if request.budget is not None:
            known = self.costs.get(alike(request.main))
            if known is not None and effort.steps is None:  # five of the shortest trials, before anything is tried
                self.afford("defenses", FEWEST_TRIALS * known.seconds(enough_steps(request.main)))
            cost = cost_of_trials(self.setup, request.main, load=self.load)
            fitted = fit_trials(self.setup, request.main, self.allotted("defenses"), cost=cost)
            trials = tuple(_with_effort(trial, effort) for trial in fitted)
            last = trials[-1]
            seconds = cost.seconds(counted(trials), steps=last.case.steps or 0, train_steps=last.train_steps)
            self.afford("defenses", seconds if effort.steps is None else 0.0)
            self.estimates["defenses"] = seconds
        self.found["trials"] = trials

    def _updates(self) -> None:
        request = self.request
        cases, changes = request.cases, request.ladder
        if (fixed := request.effort.steps) is not None:
            cases, changes = (tuple(_limited(case, fixed) for case in group) for group in (cases, changes))
        if request.budget is not None:
            seconds = self.allotted("updates")
            if fixed is None:
                cases, changes, self.found["controls"] = self._affordable(seconds)
                self.estimates["updates"] = seconds  # what a first look does not take goes to further ones
            else:
                every = Plan(request, cases=cases, ladder=changes).every_case
                own = sum(self.cost(case).seconds(fixed) for case in every)
                self.estimates["updates"] = own + self._controls(every, "full").seconds(fixed)
        self.found |= {"cases": cases, "ladder": changes}

    def _measure(self) -> None:
        """What the set-ups cost, and what a verdict on those that the user asked about needs."""
        request = self.request
        assert request.budget is not None
        every = Plan(request, cases=request.cases, ladder=request.ladder).every_case
        main = [case for case in every if case.content_key() == request.main.content_key()]
        order = [*main, *(case for case in every if case not in main)]
        found = costs(order, load=self.load, until=time.perf_counter() + TRYING * request.budget)
        self.costs = {alike(case): cost for case, cost in zip(order, found, strict=True)}
        fixed = request.effort.steps
        own = {case.content_key(): case for case in request.cases}.values()
        self.reserved = sum(self.cost(case).seconds(enough_steps(case) if fixed is None else fixed) for case in own)

    # Updates.

    def least(self, some: Sequence[Case]) -> float:
        """Seconds after which a negative of each of these counts."""
        return sum(self.cost(case).seconds(enough_steps(case)) for case in some)

    def _controls(self, cases: Sequence[Case], extent: Extent) -> Cost:
        """Of the controls of these cases: for each model one search for a single image, and one from each start near the truth."""
        runs = {"full": 1 + len(GIVEN), "plain": 1, "none": 0}[extent]
        models = {case.model: case for case in cases if "steps" in accepted_options(case)}
        each = [self.control(case) for case in models.values()]
        return sum((Cost(runs * one.fixed, runs * one.step) for one in each), Cost())

    def control(self, case: Case) -> Cost:
        """Of the control of the case: a search for one image, in eval mode, from a plain gradient."""
        single = replace(
            case, name="", mode="eval", batch_size=1, local_steps=1, local_epochs=1, channel="", defenses=()
        )
        known = self.costs.get(alike(single))
        return estimated(single, [case], self.costs) if known is None else known

    def _affordable(self, seconds: float) -> tuple[tuple[Case, ...], tuple[Case, ...], Extent]:
        """Set-ups and single changes with the steps of a first look that fits into its share of the time.

        All get the same number of steps, so two that differ in one thing can be compared, but never fewer than a negative needs to count.
        Where there is no time for that, single changes go first, then the set-ups that cost most. The one that counts is always
        attacked, with the steps there are; if these are too few for a verdict, cheaper set-ups that can have one get up to half the time.
        Controls come last: starts near the truth are dropped first, then the control itself.
        """
        request = self.request
        own, changes = list(request.cases), list(request.ladder)
        if changes and self.least(Plan(request, cases=tuple(own), ladder=tuple(changes)).every_case) > SLACK * seconds:
            changes = []
        first = next((case for case in own if case.content_key() == request.main.content_key()), own[0])
        short = self.least([first]) > SLACK * seconds
        room = self.least([first]) + JUDGED * seconds if short else SLACK * seconds
        kept = [first]
        for case in sorted((case for case in own if case is not first), key=lambda case: self.least([case])):
            if "steps" not in accepted_options(case) or self.least([*kept, case]) <= room:
                kept.append(case)
        own = [case for case in own if case in kept]
        if short:  # it may take all the time there is, and more
            own = [*(case for case in own if case is not first), first]
        every = Plan(request, cases=tuple(own), ladder=tuple(changes)).every_case
        total = sum((self.cost(case) for case in every), Cost())
        enough = max((enough_steps(case) for case in every), default=0)
        controls: Extent = "none"
        for extent in reversed(EXTENTS):  # the last that fits
            of_controls = self._controls(every, extent)
            modest = extent != "full" or of_controls.step <= CONTROL_SHARE * (total + of_controls).step
            if modest and (total + of_controls).seconds(enough) <= SLACK * seconds:
                controls = extent
        total += self._controls(every, controls)
        if short:
            others = self.least([case for case in every if case is not first])
            steps = self.cost(first).affordable(GLANCE * (seconds - others), fewest=FEW)
        else:
            steps = total.affordable(FIRST * seconds, fewest=1)
            if steps < enough:
                steps = total.affordable(WHOLE * seconds, fewest=max(enough, 1))
        given = {case.content_key(): enough_steps(case) if short and case is not first else steps for case in every}
        timed = [tuple(with_steps(case, given[case.content_key()]) for case in some) for some in (own, changes)]
        return timed[0], timed[1], controls

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """What was left out of updates for lack of time, by name and with what it would cost, and what has too few steps."""
        request = self.request
        if request.budget is None or request.effort.steps is not None or "updates" not in request.questions:
            return ()
        there = {same_work(case) for case in plan.every_case}
        changes = [case for case in request.ladder if same_work(case) not in there]
        own = [case for case in request.cases if same_work(case) not in there]
        changes = [case for case in changes if same_work(case) not in {same_work(one) for one in own}]
        notes = list[str]()
        if changes:
            some = "" if len(changes) >= len(request.ladder) - 1 else f"{len(changes)} of {len(request.ladder) - 1} "
            notes.append(
                f"{some}single changes of the set-up were left out: they take at least {duration(self.least(changes))} more"
            )
        notes += [
            f"{case.short_name()} was left out: it takes at least {duration(self.least([case]))}"
            for case in sorted(own, key=lambda case: self.least([case]))
        ]
        first = next((case for case in plan.cases if same_work(case) == same_work(request.main)), plan.cases[0])
        steps, enough = first.steps, enough_steps(first)
        if steps is not None and steps < enough:
            notes.append(
                f"there is time for {plural(steps, 'step')} on {first.short_name()}, and a negative counts only after {enough} "
                f"({duration(self.least([first]))}): give more time"
            )
        elif plan.controls != "full":
            more = self._controls(plan.every_case, "full" if plan.controls == "plain" else "plain").seconds(enough)
            what = (
                "starts near the truth were" if plan.controls == "plain" else "the positive control of the attack was"
            )
            so = "" if plan.controls == "plain" else ", so no negative is evidence"
            notes.append(f"{what} left out{so}: at least {duration(more)} more")
        return tuple(notes)


def ends(began: float, budget: float) -> float:
    """When everything but the report has to be done (perf_counter)."""
    return began + (1 - FINISH_SHARE) * budget - FINISH


def rehearse(cases: Sequence[Case], *, load: Load, until: float = math.inf) -> None:
    """Sets every case up and shares its batch, so the user learns what to fix before anything runs.

    None is begun that would end after ``until`` if it took as long as the longest so far.
    """
    longest, began = 0.0, time.perf_counter()
    for case in cases:
        longest, began = max(longest, time.perf_counter() - began), time.perf_counter()
        if began + longest > until:
            return
        setup = set_up(case, load)
        check_runs(setup)
        try:
            setup.observation(case)
        except BadInput:
            raise
        except Exception:  # noqa: BLE001 - a refusal or a crash: the run meets it again and records it
            continue


def _with_effort(trial: Trial, effort: Effort) -> Trial:
    """The trial with what was decided beforehand in place of what fits into the time."""
    case = trial.case if effort.steps is None else with_steps(trial.case, effort.steps)
    return replace(trial, case=case, train_steps=trial.train_steps if effort.training is None else effort.training)


def _limited(case: Case, steps: int) -> Case:
    """The case with so many steps, unless it says its own."""
    return case if "steps" in case.options else with_steps(case, steps)


def _one_pass(setup: Setup) -> float:
    """Seconds of the model on all images of the data."""
    some = setup.images[:8]
    x = setup.victim.to_input(setup.victim.space.encode(some))
    with torch.no_grad():
        setup.victim(x)
        return elapsed(lambda: setup.victim(x)) / len(some) * len(setup.images)


def again(case: Case, question: Question, option: str, value: int | None) -> str:
    """The command line that answers this question alone, with this effort; none for a model in memory."""
    if case.in_memory:
        return ""
    words = ["leakgauge", "audit", case.model, "--only", question, *case.as_options("seed", *SETUP)]
    return shlex.join([*words, *([] if value is None else [option, str(value)])])
