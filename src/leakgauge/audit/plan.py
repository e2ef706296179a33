"""What an audit is asked, and what it will do. Both are kept in ``plan.json``, and a resumed run does the same.

The request is written before anything is measured and the plan when it is made, so a run can be resumed from its first second on.
Planning decides what can be answered, and how many iterations of each question fit into the time.
"""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from leakgauge.audit.case import SETUP, Case, accepted_options, enough_steps, present_fields, with_steps
from leakgauge.audit.control import EXTENTS, GIVEN, Extent
from leakgauge.audit.files import json_text, read_json, write_whole
from leakgauge.audit.phrasing import duration, plural
from leakgauge.audit.questions import Question
from leakgauge.audit.questions import split as scan_records
from leakgauge.audit.questions.defenses import (
    Trial,
    cost_of_trials,
    counted,
    fit_trials,
    plan_trials,
)
from leakgauge.audit.questions.properties import (
    FEWEST_UPDATES,
    PROPERTIES,
    UPDATES,
    PropertyPlan,
    plan_properties,
    seconds_of_update,
)
from leakgauge.audit.questions.split import SHARE, Asked, ScanRun, plan_scan
from leakgauge.audit.questions.training import FEWEST_STEPS as FEWEST_TRAINING
from leakgauge.audit.questions.training import MOST_STEPS as MOST_TRAINING
from leakgauge.audit.questions.training import TrainingPlan, plan_training, trial_cost
from leakgauge.audit.questions.updates import dishonest, ladder, pointless
from leakgauge.audit.scoring import pair_images
from leakgauge.audit.session import Load, Setup, check_fits, modes_differ, set_up
from leakgauge.audit.timing import MEASURABLE, Cost, cost_of_steps, elapsed
from leakgauge.audit.typed import Misfit, typed
from leakgauge.core import Sampled
from leakgauge.errors import BadInput, Inapplicable

FILE = "plan.json"
FORMAT = 2
"""Of the file. Before it, the file was a list of cases: a plan of the question ``updates`` alone."""
SHARES: Mapping[Question, float] = {
    "updates": 0.45,
    "training": 0.10,
    "split": 0.20,
    "defenses": 0.25,
    "properties": 0.10,
}
"""How the time of a budget is shared out. What one question cannot use goes to those that are planned after it."""
ORDER: tuple[Question, ...] = ("split", "training", "properties", "defenses", "updates")
"""The order of planning: what can take any number of iterations comes last and gets the rest, at least what a verdict needs."""
PLANNING = 0.1
"""Share of the budget for finding out what things cost; set-ups that were not tried by then are estimated from those that were."""
REHEARSAL = 0.3 * PLANNING
"""Share of the budget for setting up each case once, to find mistakes early; what is late meets them in its run."""
PASSES = 24
"""Forward passes over all images that the shortest scan of cuts costs: three cuts by regression, least squares and decoders."""
FINISH = 2.0
"""Seconds for the report."""
TRAINING_STEPS, EPOCHS, DEFENSE_STEPS, DEFENSE_TRAINING_STEPS = 300, 12, 200, 60
"""Effort without a budget: of the monitored training, of a decoder, of the attack and of the training under each defense."""
NOMINAL: Mapping[str, float] = {"updates": 55.0, "training": 8.0, "split": 25.0, "defenses": 45.0, "properties": 60.0}
"""Seconds of the audit of the embedded models without a budget, as measured on one core; others differ."""


@dataclass(frozen=True)
class Effort:
    """Iterations of each question that were decided beforehand; None where a time budget decides.

    ``steps``: of the attack, in updates (where a case does not say its own) and under defenses. ``training``: optimizer steps, of
    the monitored training and of the trainings that cost accuracy under defenses. ``epochs``: of a decoder at a cut.
    """

    steps: int | None = None
    training: int | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("training", 1), ("epochs", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                option = {"steps": "--option steps", "training": "--training-steps", "epochs": "--epochs"}[name]
                raise BadInput(f"{option} must be at least {least}, got {value}")

    def leaves_open(self, questions: Collection[Question]) -> bool:
        """Whether some question needs a time to know its iterations by."""
        decided = {"updates": self.steps, "training": self.training, "split": self.epochs}
        decided["defenses"] = self.steps if self.training is None else self.training
        decided["properties"] = None
        return any(decided[question] is None for question in questions)


UNDECIDED = Effort()


@dataclass(frozen=True)
class Request:
    """What the user asked for: ``cases`` to attack, and the single changes (``ladder``) of ``main``, the set-up that counts.

    ``split`` names the model that is cut, which is another one in the audit of the embedded models.
    """

    questions: tuple[Question, ...]
    main: Case
    cases: tuple[Case, ...]
    ladder: tuple[Case, ...]
    split: Case
    effort: Effort
    budget: float | None = None
    command: str = ""
    nominal: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each question takes on two cores, where that is known beforehand."""

    def __post_init__(self) -> None:
        if not self.questions or len(set(self.questions)) < len(self.questions):
            raise BadInput(
                f"an audit answers each question once, and at least one; got {', '.join(self.questions) or 'none'}"
            )


@dataclass(frozen=True)
class Plan:
    """What the audit does. ``refusals`` maps a question that cannot be answered to the reason.

    ``estimates`` holds the seconds that each question may still take, ``planning`` those that went into finding out; the first attacks
    of a scan, which count, are in neither. ``controls`` says which controls of the attack there is time for.
    """

    request: Request
    cases: tuple[Case, ...] = ()
    ladder: tuple[Case, ...] = ()
    training: TrainingPlan | None = None
    epochs: int | None = None
    trials: tuple[Trial, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)
    estimates: Mapping[str, float] = field(default_factory=dict)
    planning: float = 0.0
    notes: tuple[str, ...] = ()
    controls: Extent = "full"
    properties: PropertyPlan | None = None

    @property
    def questions(self) -> tuple[Question, ...]:
        return self.request.questions

    @property
    def every_case(self) -> tuple[Case, ...]:
        """Cases and ladder, each set-up once: a change that is a case of its own is not run again."""
        found = {case.content_key(): case for case in (*self.ladder, *self.cases)}
        order = {case.content_key(): None for case in (*self.cases, *self.ladder)}
        return tuple(found[key] for key in order)


def cases_of(found: Plan | Request) -> tuple[Case, ...]:
    """Every case that is loaded when the plan is carried out."""
    request = found.request if isinstance(found, Plan) else found
    cases = (request.main, request.split, *request.cases, *request.ladder)
    if isinstance(found, Plan):
        training = () if found.training is None else (found.training.case,)
        cases = (*cases, *found.cases, *found.ladder, *training, *(trial.case for trial in found.trials))
    return cases


# What is asked.


def default_cases(*, steps: int = 500, seed: int = 0, device: str = "cpu") -> list[Case]:
    """Eight cases on the embedded models that show each factor once: model, mode, batch size, noise."""
    options = {"steps": steps}
    noise = ("gaussian_noise:relative=10.0",)

    def case(model: str, **changes: object) -> Case:
        return replace(Case(model=model, options=options, seed=seed, device=device), name="", **changes)

    return [
        case("cnn"),
        case("cnn", batch_size=4),
        case("cnn", mode="train"),
        case("cnn", mode="train", batch_size=4),
        case("cnn", defenses=noise),
        case("vit"),
        case("vit", batch_size=4),
        case("vit", defenses=noise),
    ]


def variants(base: Case, *, modes: Sequence[str], batch_size: int | None, defenses: Sequence[str]) -> list[Case]:
    """The cases of a user's audit: each mode, batches of 1 and 4 unless one is fixed, undefended and with each defense."""
    least = base.batch_sizes().start
    sizes = sorted({max(least, size) for size in (1, 4)}) if batch_size is None else (batch_size,)
    guards: list[tuple[str, ...]] = [(), *[(spec,) for spec in defenses]]
    return [
        replace(base, name="", mode=mode, batch_size=size, defenses=guard)
        for mode in modes
        for size in sizes
        for guard in guards
    ]


def ask(
    base: Case,
    *,
    load: Load,
    questions: tuple[Question, ...],
    mode: str | None = None,
    batch_size: int | None = None,
    defenses: Sequence[str] = (),
    cases: Sequence[Case] | None = None,
    changes: bool = True,
    explain: bool = False,
    models: Mapping[str, str] | None = None,
    effort: Effort = UNDECIDED,
    budget: float | None = None,
    command: str = "",
) -> Request:
    """A request about the model and data of ``base``. Where train and eval mode do not differ for the model, they are one case.

    ``cases`` take the place of the usual ones; the first of them is the set-up that counts. ``models`` are relaxations of the network
    itself, by name. ``changes``: try single changes of one set-up too; ``explain`` asks for nothing else.
    """
    if cases is not None:
        main, grid = cases[0], list(cases)
    else:
        size = 4 if batch_size is None else batch_size
        main = replace(base, name="", mode=mode or "train", batch_size=size, defenses=tuple(defenses))
        modes = ("eval", "train") if mode is None else (mode,)
        grid = variants(base, modes=modes, batch_size=batch_size, defenses=defenses)
    for case in (main, *grid):
        case.build_defenses()
        case.require_fit()
    steps: list[Case] = []
    if "updates" in questions:
        setup = load(main)
        check_fits(setup)
        without = set(pointless(setup.victim))
        if modes_differ(setup):
            without -= {"eval mode", "train mode"}
        elif cases is None:
            grid = [case for case in grid if case.mode == main.mode]
        steps = ladder(main, images=len(setup.images), models=models, without=without) if changes else []
    if explain:
        grid, steps = steps, []
    elif "updates" in questions and changes and (server := dishonest(main)) is not None:
        grid = [*grid, server]
    split = replace(base, name="", attack=Case.attack, options={}, reveal=Case.reveal, channel="").without_training()
    return Request(questions, main, tuple(grid), tuple(steps), split, effort, budget, command)


def ask_embedded(
    *,
    questions: tuple[Question, ...],
    effort: Effort = UNDECIDED,
    budget: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    command: str = "",
) -> Request:
    """A request about the embedded models."""
    eight = tuple(default_cases(seed=seed, device=device))
    split = Case(model="vgg", seed=seed, device=device)
    server = dishonest(eight[3])  # train mode, a batch of 4: as a client trains
    assert server is not None, "none of the eight names a server"
    return Request(
        questions,
        eight[0],
        (*eight, server),
        (),
        split,
        effort,
        budget,
        command,
        nominal=NOMINAL if effort == UNDECIDED else {},
    )


# What will be done.


@dataclass
class _Draft:
    request: Request
    load: Load
    folder: Path
    began: float
    setup: Setup
    estimates: dict[str, float] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    reserved: float = 0.0
    worked: float = 0.0

    def left(self) -> float:
        """Seconds that are neither spent nor promised."""
        assert self.request.budget is not None, "only a budget is shared out"
        spent = time.perf_counter() - self.began
        return max(0.0, self.request.budget - FINISH - spent - sum(self.estimates.values()))

    def allotted(self, question: Question) -> float:
        """Seconds for a question: its share of what is left. Updates keep what a verdict on the user's own set-ups needs."""
        left = self.left()
        open_: list[Question] = [q for q in ORDER[ORDER.index(question) :] if q in self.request.questions]
        share = left * SHARES[question] / sum(SHARES[q] for q in open_)
        return share if question == "updates" else max(0.0, min(share, left - self.reserved))

    def afford(self, question: Question, least: float) -> None:
        """Refuses a question that would take longer than there is time for it."""
        allotted = self.allotted(question)
        if least > SLACK * allotted:
            assert self.request.budget is not None
            raise Inapplicable(
                f"left out: it takes at least {duration(least)}, and of the {duration(self.request.budget)} there are "
                f"{duration(allotted)} for it; give more time or ask it alone (--only {question})"
            )


SLACK = 1.1
"""By how much a promise may exceed the time there is."""


def make_plan(
    request: Request, *, load: Load, folder: Path, began: float, on_question: Callable[[Question], None] | None = None
) -> Plan:
    """What the audit will do. ``began`` is the time (perf_counter) from which the budget counts.

    A question that cannot be answered is refused here, with its reason, and the others remain; where none is left, that reason is
    raised for the user to fix.
    """
    draft, refusals = _Draft(request, load, folder, began, load(request.main)), dict[str, str]()
    check_fits(draft.setup)
    if "updates" in request.questions:
        until = math.inf if request.budget is None else began + REHEARSAL * request.budget
        rehearse([*request.cases, *request.ladder], load=load, until=until)
        if request.budget is not None:
            _measure(draft)
    planners = {
        "split": _split,
        "training": _training,
        "properties": _properties,
        "defenses": _defenses,
        "updates": _updates,
    }
    for question in ORDER:
        if question not in request.questions:
            continue
        if on_question is not None:
            on_question(question)
        try:
            planners[question](draft)
        except (BadInput, Inapplicable) as refusal:
            if question == "updates":  # it has been rehearsed: what is wrong here is not the question's fault
                raise
            refusals[question] = str(refusal)
    if len(refusals) == len(request.questions):
        raise BadInput(refusals[request.questions[0]])
    nominal = {q: s for q, s in request.nominal.items() if q in request.questions and q not in refusals}
    return Plan(
        request,
        **draft.found,
        refusals=refusals,
        estimates={q: round(s, 1) for q, s in (draft.estimates or nominal).items()},
        planning=round(time.perf_counter() - began - draft.worked, 1),
    )


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
        check_fits(setup)
        try:
            setup.observation(case)
        except BadInput:
            raise
        except Exception:  # noqa: BLE001 - a refusal or a crash: the run meets it again and records it
            continue


def _split(draft: _Draft) -> None:
    request, fixed = draft.request, draft.request.effort.epochs
    setup = draft.load(replace(request.split, mode="eval"))
    timed = request.budget is not None and fixed is None
    asked = Asked(epochs=None if timed else EPOCHS if fixed is None else fixed)
    command = again(request.split, "split", "--epochs", asked.epochs)
    if timed:
        draft.afford("split", PASSES * _one_pass(setup))
    plan = plan_scan(setup, request.split, asked, draft.folder, command=command, audited=True)
    if timed:
        began = time.perf_counter()
        run = ScanRun(setup, plan, draft.folder)
        curve = run.ridge(SHARE * draft.allotted("split"))
        run.plan = replace(run.plan, budget=max(0.1, draft.allotted("split")))
        draft.estimates["split"] = run.decide(curve)
        plan = replace(run.plan, command=again(request.split, "split", "--epochs", run.plan.epochs))
        scan_records.save_plan(draft.folder, plan)
        draft.worked += time.perf_counter() - began  # these attacks count, they are not tried again
    draft.found["epochs"] = plan.epochs


def _training(draft: _Draft) -> None:
    request, steps = draft.request, draft.request.effort.training

    def planned(steps: int) -> TrainingPlan:
        command = again(request.main, "training", "--training-steps", steps)
        return plan_training(draft.setup, request.main, steps=steps, command=command)

    plan = planned(TRAINING_STEPS if steps is None else steps)
    if request.budget is not None:
        known = draft.costs.get(_alike(request.main))
        if (
            known is not None and steps is None
        ):  # a training step is no longer than a replay; refused before anything is tried
            draft.afford("training", FEWEST_TRAINING * known.step)
        with tempfile.TemporaryDirectory() as folder:
            cost = trial_cost(draft.setup, plan, Path(folder), seed=request.main.seed)
        if steps is None:
            draft.afford("training", cost.seconds(FEWEST_TRAINING))
            plan = planned(cost.affordable(draft.allotted("training"), fewest=FEWEST_TRAINING, most=MOST_TRAINING))
        draft.estimates["training"] = cost.seconds(plan.steps)
    draft.found["training"] = plan


def _properties(draft: _Draft) -> None:
    request = draft.request
    plan = plan_properties(draft.setup, command=again(request.main, "properties", "", None))
    if request.budget is not None:
        cost = Cost(step=2 * len(PROPERTIES) * seconds_of_update(draft.setup, request.main, plan))
        draft.afford("properties", cost.seconds(FEWEST_UPDATES))
        updates = cost.affordable(draft.allotted("properties"), fewest=FEWEST_UPDATES, most=UPDATES)
        plan = replace(plan, updates=min(updates, UPDATES))
        draft.estimates["properties"] = cost.seconds(plan.updates)
    draft.found["properties"] = plan


def _defenses(draft: _Draft) -> None:
    request, effort = draft.request, draft.request.effort
    steps, training = effort.steps or DEFENSE_STEPS, effort.training or DEFENSE_TRAINING_STEPS
    trials = plan_trials(draft.setup, request.main, steps=steps, train_steps=training)
    if request.budget is not None:
        known = draft.costs.get(_alike(request.main))
        if known is not None and effort.steps is None:  # five of the shortest trials, before anything is tried
            draft.afford("defenses", FEWEST_TRIALS * known.seconds(enough_steps(request.main)))
        cost = cost_of_trials(draft.setup, request.main, load=draft.load)
        fitted = fit_trials(draft.setup, request.main, draft.allotted("defenses"), cost=cost)
        trials = tuple(_with_effort(trial, effort) for trial in fitted)
        last = trials[-1]
        seconds = cost.seconds(
            counted(trials), steps=int(last.case.options.get("steps", 0)), train_steps=last.train_steps
        )
        draft.afford("defenses", seconds if effort.steps is None else 0.0)
        draft.estimates["defenses"] = seconds
    draft.found["trials"] = trials


def _with_effort(trial: Trial, effort: Effort) -> Trial:
    """The trial with what was decided beforehand in place of what fits into the time."""
    case = trial.case if effort.steps is None else with_steps(trial.case, effort.steps)
    return replace(trial, case=case, train_steps=trial.train_steps if effort.training is None else effort.training)


FEWEST_TRIALS = 5
"""Of defenses, the undefended one among them."""


def _one_pass(setup: Setup) -> float:
    """Seconds of the model on all images of the data."""
    some = setup.images[:8]
    x = setup.victim.to_input(setup.victim.space.encode(some))
    with torch.no_grad():
        setup.victim(x)
        return elapsed(lambda: setup.victim(x)) / len(some) * len(setup.images)


def _measure(draft: _Draft) -> None:
    """What the set-ups cost, and what a verdict on those that the user asked about needs."""
    request = draft.request
    assert request.budget is not None
    every = Plan(request, cases=request.cases, ladder=request.ladder).every_case
    main = [case for case in every if case.content_key() == request.main.content_key()]
    order = [*main, *(case for case in every if case not in main)]
    found = costs(order, load=draft.load, until=draft.began + PLANNING * request.budget)
    draft.costs = {_alike(case): cost for case, cost in zip(order, found, strict=True)}
    fixed = request.effort.steps
    own = {case.content_key(): case for case in request.cases}.values()
    draft.reserved = sum(
        draft.costs[_alike(case)].seconds(enough_steps(case) if fixed is None else fixed) for case in own
    )


def _updates(draft: _Draft) -> None:
    request = draft.request
    cases, changes = request.cases, request.ladder
    if request.effort.steps is not None:
        cases, changes = (tuple(_limited(case, request.effort.steps) for case in group) for group in (cases, changes))
    if request.budget is not None:
        fixed, seconds = request.effort.steps, draft.allotted("updates")
        if fixed is None:
            cases, changes, notes, controls = _affordable(draft, seconds)
            draft.found |= {"notes": notes, "controls": controls}
        every = Plan(request, cases=cases, ladder=changes).every_case
        draft.estimates["updates"] = sum(
            draft.costs[_alike(case)].seconds(int(case.options.get("steps", 0)) if fixed is None else fixed)
            for case in every
        ) + _control_cost(draft, every, draft.found.get("controls", "full")).seconds(
            max((int(case.options.get("steps", 0)) for case in every), default=0) if fixed is None else fixed
        )
    draft.found |= {"cases": cases, "ladder": changes}


def _limited(case: Case, steps: int) -> Case:
    """The case with so many steps, unless it says its own."""
    return case if "steps" in case.options else with_steps(case, steps)


CONTROL_SHARE = 0.35
"""Of the time of updates, for controls with starts near the truth; where these would take more, they are left out."""


def _control_cost(draft: _Draft, cases: Sequence[Case], extent: Extent) -> Cost:
    """Of the controls of these cases: for each model one search for a single image, and one from each start near the truth."""
    runs = {"full": 1 + len(GIVEN), "plain": 1, "none": 0}[extent]
    cheapest: dict[str, Cost] = {}
    for case in cases:
        if "steps" in accepted_options(case):
            found = draft.costs[_alike(case)]
            cheapest[case.model] = min(found, cheapest.get(case.model, found), key=lambda cost: cost.step)
    return sum((Cost(runs * one.fixed, runs * one.step) for one in cheapest.values()), Cost())


def _affordable(draft: _Draft, seconds: float) -> tuple[tuple[Case, ...], tuple[Case, ...], tuple[str, ...], Extent]:
    """Set-ups and single changes with the steps that fit into the time, and what was left out, by name and with what it would cost.

    All get the same number of steps, so two that differ in one thing can be compared, but never fewer than a negative needs to count.
    Where there is no time for that, single changes go first, then the set-ups that cost most. The one that counts is always
    attacked, with the steps there are; if these are too few for a verdict, cheaper set-ups that can have one get up to half of the time.
    Controls come last: starts near the truth are dropped first, then the control itself.
    """
    request, notes = draft.request, list[str]()

    def cost(case: Case) -> Cost:
        return draft.costs[_alike(case)]

    def least(some: Sequence[Case]) -> float:
        return sum(cost(case).seconds(enough_steps(case)) for case in some)

    own, changes = list(request.cases), list(request.ladder)
    every = Plan(request, cases=tuple(own), ladder=tuple(changes)).every_case
    if changes and least(every) > SLACK * seconds:
        more = least(every) - least(own)
        notes.append(f"single changes of the set-up were left out: they take at least {duration(more)} more")
        changes = []
    first = next((case for case in own if case.content_key() == request.main.content_key()), own[0])
    short = least([first]) > SLACK * seconds
    room = least([first]) + JUDGED * seconds if short else SLACK * seconds
    kept = [first]
    for case in sorted((case for case in own if case is not first), key=lambda case: least([case])):
        if "steps" not in accepted_options(case) or least([*kept, case]) <= room:
            kept.append(case)
        else:
            notes.append(f"{case.short_name()} was left out: it takes at least {duration(least([case]))}")
    own = [case for case in own if case in kept]
    if short:  # it may take all the time there is, and more
        own = [*(case for case in own if case is not first), first]
    every = Plan(request, cases=tuple(own), ladder=tuple(changes)).every_case
    total = sum((cost(case) for case in every), Cost())
    enough = max((enough_steps(case) for case in every), default=0)
    controls: Extent = "none"
    for extent in reversed(EXTENTS):  # the last that fits
        own_cost = _control_cost(draft, every, extent)
        modest = extent != "full" or own_cost.step <= CONTROL_SHARE * (total + own_cost).step
        if modest and (total + own_cost).seconds(enough) <= SLACK * seconds:
            controls = extent
    total += _control_cost(draft, every, controls)
    if controls != "full" and not short:
        more = (_control_cost(draft, every, "full" if controls == "plain" else "plain")).seconds(enough)
        what = "starts near the truth were" if controls == "plain" else "the positive control of the attack was"
        so = "" if controls == "plain" else ", so no negative is evidence"
        notes.append(f"{what} left out{so}: at least {duration(more)} more")
    if short:
        steps = cost(first).affordable(seconds - least([case for case in every if case is not first]), fewest=1)
        notes.append(
            f"there is time for {plural(steps, 'step')} on {first.short_name()}, and a negative counts only after {enough} "
            f"({duration(least([first]))}): give more time"
        )
    else:
        steps = total.affordable(seconds, fewest=max(enough, 1))
    given = {case.content_key(): enough_steps(case) if short and case is not first else steps for case in every}
    timed = [tuple(with_steps(case, given[case.content_key()]) for case in some) for some in (own, changes)]
    return timed[0], timed[1], tuple(notes), controls


JUDGED = 0.5
"""Share of the time for set-ups that can be judged, where the one that counts cannot."""


def costs(cases: Sequence[Case], *, load: Load, until: float = math.inf) -> list[Cost]:
    """The cost of each case; nothing where the attack takes no steps or does not run. Defenses make no difference.

    The first is always tried. After the time ``until`` (perf_counter) the others are estimated from those that were.
    """
    known: dict[str, Cost] = {}
    tried: list[Case] = []
    scoring = cache(lambda batch: _scoring(replace(cases[0], name="", batch_size=batch), load))
    for case in cases:
        alike = _alike(case)
        if alike in known:
            continue
        if "steps" not in accepted_options(case):  # a closed form takes little beside its scores
            late = tried and time.perf_counter() > until
            sharing = _estimated(case, tried, known).step if late else _sharing(case, load)
            known[alike] = Cost(scoring(case.batch_size) + SHARING * sharing)
        elif tried and time.perf_counter() > until:
            known[alike] = _estimated(case, tried, known)
        else:
            found = _cost(case, load=load)
            besides = scoring(case.batch_size) + READING * found.step
            known[alike] = found + Cost(besides) if found.step else found
            tried.append(case)
    return [known[_alike(case)] for case in cases]


def _estimated(case: Case, tried: Sequence[Case], known: Mapping[str, Cost]) -> Cost:
    """From the tried case that is most like it, by the images that go through the model in one replay.

    Fewer local steps take as much less time, being taken one after the other; smaller batches do not, and are assumed to save the square
    root only.
    """
    near = max(
        tried, key=lambda one: (one.model == case.model, one.mode == case.mode, -abs(_images(one) - _images(case)))
    )
    found, batches = known[_alike(near)], case.batch_size / near.batch_size
    ratio = _replayed(case) / _replayed(near) * (batches if batches > 1 else math.sqrt(batches))
    return Cost(found.fixed * min(1.0, ratio), found.step * ratio)


def _images(case: Case) -> int:
    return case.batch_size * _replayed(case)


def _replayed(case: Case) -> int:
    """Local steps of one replay."""
    return case.local_steps * case.local_epochs


def _alike(case: Case) -> str:
    return replace(with_steps(case, 1), name="", defenses=(), first=0, change=None).key()


def attack_once(case: Case, load: Load) -> None:
    """Runs the case's attack; one of its searches, where it makes several. Labels are given, for reading them is no part of a step."""
    setup, attack = set_up(case, load), case.build_attack()
    single = attack.sample()[0] if isinstance(attack, Sampled) else attack
    _, labels = setup.private(case)
    single(setup.victim, replace(setup.observation(case), labels=labels), seed=case.seed)


def _cost(case: Case, *, load: Load) -> Cost:
    """Of the attack alone: null run and scores take little beside it. Nothing where it is refused or fails; the run meets that again."""
    try:
        found = cost_of_steps(lambda steps: attack_once(with_steps(case, steps), load))
    except BadInput:
        raise
    except Exception:  # noqa: BLE001 - a refusal or a crash: the run meets it again and records it
        return Cost()
    attack = case.build_attack()
    runs = attack.sample()[1] if isinstance(attack, Sampled) else 1
    return Cost(
        found.fixed + (runs - 1) * found.step, found.step
    )  # the batch is shared once; each search judges its last image


READING = 40
"""Replays that reading the labels, comparing the candidates, the null run and the truth test of a case take together."""
SHARING = 3
"""Times of sharing an update that a closed form takes: the model is sent, an update shared, read and compared."""


def _sharing(case: Case, load: Load) -> float:
    """Seconds of setting the case up and sharing its update; nothing where that is refused."""
    began = time.perf_counter()
    with suppress(Inapplicable):
        set_up(case, load).observation(case)
    return time.perf_counter() - began


SCORED = 24
"""Other images with which the time of scoring is measured; with fewer some scores are not computed."""


def _scoring(case: Case, load: Load) -> float:
    """Seconds of scoring a reconstruction and a null run. Where that takes long, from one image and a few others."""
    setup = load(case)
    truths, others = setup.images[case.first : case.first + case.batch_size], setup.pool(case)
    one, some = truths[:1], None if others is None else others[:SCORED]
    short = min(elapsed(lambda: pair_images(one, one, pool=some)) for _ in range(2))  # the first of a process warms up
    if some is None or others is None or short < MEASURABLE:
        return 2 * elapsed(lambda: pair_images(truths, truths, pool=others))
    return 2 * short * len(truths) * (len(truths) + len(others)) / (1 + len(some))


def again(case: Case, question: Question, option: str, value: int | None) -> str:
    """The command line that answers this question alone, with this effort; none for a model in memory."""
    if case.in_memory:
        return ""
    words = ["leakgauge", "audit", case.model, "--only", question, *case.as_options("seed", *SETUP)]
    return shlex.join([*words, *([] if value is None else [option, str(value)])])


# The file.


def save(folder: Path, found: Plan | Request) -> None:
    """Writes the plan, or the request as long as there is none."""
    content = asdict(found) if isinstance(found, Plan) else {"request": asdict(found)}
    write_whole(folder / FILE, json_text({"format": FORMAT, **content}))


def read(folder: Path) -> Plan | Request:
    """The plan of an earlier run, or, where that was stopped before its plan was made, the request."""
    path = folder / FILE
    if not path.is_file():
        raise BadInput(f"nothing to resume: {folder} has no {FILE}; start the audit without --resume")
    return read_json(path, _decode, remedy="move it away, or start another audit with another --out")


def of_audit(folder: Path) -> Plan | Request | None:
    """What was asked of a whole audit; None where there was none, or only a list of cases, as older versions kept."""
    path = folder / FILE
    if not path.is_file():
        return None
    remedy = "move it away to see the report without it"
    return read_json(path, lambda found: None if isinstance(found, list) else _decode(found), remedy=remedy)


def of_cases(cases: Sequence[Case]) -> Plan:
    """A plan of the question ``updates`` alone."""
    if not cases:
        raise BadInput("a plan needs a case")
    request = Request(("updates",), cases[0], tuple(cases), (), cases[0], Effort())
    return Plan(request, cases=tuple(cases))


def _decode(found: Any) -> Plan | Request:
    if isinstance(found, list):
        return of_cases([typed(Case, present_fields(fields), f"[{place}]") for place, fields in enumerate(found)])
    known = dict(typed(Mapping[str, Any], found))
    if known.pop("format", None) != FORMAT:
        raise Misfit("it is of another version")
    request = _cases(known.get("request"), ("main", "split"), ("cases", "ladder"))
    if "cases" not in known:
        return typed(Request, request, "request")
    return typed(Plan, _cases({**known, "request": request}, (), ("cases", "ladder")))


def _cases(fields: Any, single: Sequence[str], several: Sequence[str]) -> dict[str, Any]:
    """The fields with their cases in the present form; what is none is left, to be refused."""
    found = dict(typed(Mapping[str, Any], fields))
    found |= {name: present_fields(found[name]) for name in single if name in found}
    return found | {
        name: list(map(present_fields, found[name])) for name in several if isinstance(found.get(name), list)
    }
