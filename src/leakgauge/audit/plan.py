"""What an audit is asked, and what it will do. Both are kept in ``plan.json``, and a resumed run does the same.

The request is written before anything is measured and the plan when it is made, so a run can be resumed from its first second on.
Planning decides what can be answered, and how many iterations of each question fit into the time.
"""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from leakgauge.audit.case import SETUP, Case, accepted_options, restored, with_steps
from leakgauge.audit.files import write_whole
from leakgauge.audit.migrate import case_of
from leakgauge.audit.questions import QUESTIONS, Question
from leakgauge.audit.questions import split as scan_records
from leakgauge.audit.questions.defenses import (
    Trial,
    cost_of_trials,
    counted,
    fit_trials,
    plan_trials,
    trial_from,
)
from leakgauge.audit.questions.split import SHARE, Asked, ScanRun, plan_scan
from leakgauge.audit.questions.training import FEWEST_STEPS as FEWEST_TRAINING
from leakgauge.audit.questions.training import MOST_STEPS as MOST_TRAINING
from leakgauge.audit.questions.training import TrainingPlan, plan_training, trial_cost
from leakgauge.audit.questions.updates import ladder, pointless
from leakgauge.audit.run import run_case
from leakgauge.audit.session import Load, Setup, check_fits, modes_differ, set_up
from leakgauge.audit.timing import Cost, cost_of
from leakgauge.errors import BadInput, Inapplicable

FILE = "plan.json"
FORMAT = 2
"""Of the file. Before it, the file was a list of cases: a plan of the question ``updates`` alone."""
SHARES: Mapping[Question, float] = {"updates": 0.45, "training": 0.10, "split": 0.20, "defenses": 0.25}
"""How the time of a budget is shared out. What one question cannot use goes to those that are planned after it."""
ORDER: tuple[Question, ...] = ("split", "training", "defenses", "updates")
"""The order of planning: what can take any number of iterations comes last and gets the rest."""
FINISH = 2.0
"""Seconds for the report."""
TRAINING_STEPS, EPOCHS, DEFENSE_STEPS, DEFENSE_TRAINING_STEPS = 300, 12, 200, 60
"""Effort without a budget: of the monitored training, of a decoder, of the attack and of the training under each defense."""
NOMINAL: Mapping[str, float] = {"updates": 55.0, "training": 8.0, "split": 25.0, "defenses": 45.0}
"""Seconds of the audit of the embedded models without a budget, as measured on one core; others differ."""


@dataclass(frozen=True)
class Effort:
    """Iterations of each question that were decided beforehand; None where a time budget decides.

    ``steps``: of the attack, in updates and under defenses. ``training``: optimizer steps, of the monitored training and of the
    trainings that cost accuracy under defenses. ``epochs``: of a decoder at a cut.
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


@dataclass(frozen=True)
class Plan:
    """What the audit does. ``refusals`` maps a question that cannot be answered to the reason.

    ``estimates`` holds the seconds that each question may take, ``planning`` those that went into finding out.
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

    @property
    def questions(self) -> tuple[Question, ...]:
        return self.request.questions

    @property
    def every_case(self) -> tuple[Case, ...]:
        """Cases and ladder, each set-up once: a change that is a case of its own is not run again."""
        found = {case.content_key(): case for case in (*self.ladder, *self.cases)}
        order = {case.content_key(): None for case in (*self.cases, *self.ladder)}
        return tuple(found[key] for key in order)


# What is asked.


def default_cases(*, steps: int = 500, seed: int = 0, device: str = "cpu") -> list[Case]:
    """Eight cases on the embedded models that show each factor once: model, mode, batch size, noise."""
    options = {"steps": steps, "tv": 0.01}
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
    split = replace(base, name="", attack=Case.attack, options={}, reveal=Case.reveal, channel="")
    split = replace(split, name="", local_steps=Case.local_steps, local_lr=Case.local_lr)
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
    return Request(
        questions, eight[0], eight, (), split, effort, budget, command, nominal=NOMINAL if effort == UNDECIDED else {}
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

    def allotted(self, question: Question) -> float:
        """Seconds for a question: its share of what is neither spent nor promised."""
        assert self.request.budget is not None, "only a budget is shared out"
        spent = time.perf_counter() - self.began
        left = self.request.budget - FINISH - spent - sum(self.estimates.values())
        open_: list[Question] = [q for q in ORDER[ORDER.index(question) :] if q in self.request.questions]
        return max(0.0, left) * SHARES[question] / sum(SHARES[q] for q in open_)


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
        rehearse([*request.cases, *request.ladder], load=load)
    planners = {"split": _split, "training": _training, "defenses": _defenses, "updates": _updates}
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
        planning=round(time.perf_counter() - began, 1),
    )


def rehearse(cases: Sequence[Case], *, load: Load) -> None:
    """Sets every case up and shares its batch, so the user learns what to fix before anything runs."""
    for case in cases:
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
    plan = plan_scan(setup, request.split, asked, draft.folder, command=command, audited=True)
    if timed:
        run = ScanRun(setup, plan, draft.folder)
        curve = run.ridge(SHARE * draft.allotted("split"))
        run.plan = replace(run.plan, budget=max(0.1, draft.allotted("split")))
        draft.estimates["split"] = run.decide(curve)
        plan = replace(run.plan, command=again(request.split, "split", "--epochs", run.plan.epochs))
        scan_records.save_plan(draft.folder, plan)
    draft.found["epochs"] = plan.epochs


def _training(draft: _Draft) -> None:
    request, steps = draft.request, draft.request.effort.training

    def planned(steps: int) -> TrainingPlan:
        command = again(request.main, "training", "--training-steps", steps)
        return plan_training(draft.setup, request.main, steps=steps, command=command)

    plan = planned(TRAINING_STEPS if steps is None else steps)
    if request.budget is not None:
        with tempfile.TemporaryDirectory() as folder:
            cost = trial_cost(draft.setup, plan, Path(folder), seed=request.main.seed)
        if steps is None:
            plan = planned(cost.affordable(draft.allotted("training"), fewest=FEWEST_TRAINING, most=MOST_TRAINING))
        draft.estimates["training"] = cost.seconds(plan.steps)
    draft.found["training"] = plan


def _defenses(draft: _Draft) -> None:
    request, effort = draft.request, draft.request.effort
    steps, training = effort.steps or DEFENSE_STEPS, effort.training or DEFENSE_TRAINING_STEPS
    trials = plan_trials(draft.setup, request.main, steps=steps, train_steps=training)
    if request.budget is not None:
        cost = cost_of_trials(draft.setup, request.main, load=draft.load)
        fitted = fit_trials(draft.setup, request.main, draft.allotted("defenses"), cost=cost)
        trials = tuple(_with_effort(trial, effort) for trial in fitted)
        last = trials[-1]
        draft.estimates["defenses"] = cost.seconds(
            counted(trials), steps=int(last.case.options.get("steps", 0)), train_steps=last.train_steps
        )
    draft.found["trials"] = trials


def _with_effort(trial: Trial, effort: Effort) -> Trial:
    """The trial with what was decided beforehand in place of what fits into the time."""
    case = trial.case if effort.steps is None else with_steps(trial.case, effort.steps)
    return replace(trial, case=case, train_steps=trial.train_steps if effort.training is None else effort.training)


def _updates(draft: _Draft) -> None:
    request = draft.request
    cases, changes = request.cases, request.ladder
    if request.budget is not None:
        every = Plan(request, cases=cases, ladder=changes).every_case
        found, asked = costs(every, load=draft.load), {case.content_key() for case in cases}
        fixed, seconds = request.effort.steps, draft.allotted("updates")
        cost = sum(found, Cost())
        steps = cost.affordable(seconds) if fixed is None else fixed
        if fixed is None and changes and cost.seconds(steps) > 1.1 * seconds:
            draft.found["notes"] = ("single changes of the set-up were left out: there is no time for them",)
            own = [cost for cost, case in zip(found, every, strict=True) if case.content_key() in asked]
            cost, changes = sum(own, Cost()), ()
            steps = cost.affordable(seconds)
        if fixed is None:
            cases, changes = (tuple(with_steps(case, steps) for case in group) for group in (cases, changes))
        draft.estimates["updates"] = cost.seconds(steps)
    draft.found |= {"cases": cases, "ladder": changes}


def costs(cases: Sequence[Case], *, load: Load) -> list[Cost]:
    """The cost of each case; nothing where the attack takes no steps or does not run. Defenses make no difference.

    All cases get the same number of steps, so two that differ in one thing can be compared; hence one cost for all of them.
    """
    known: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            alike = _alike(case)
            if alike not in known:
                known[alike] = _cost(case, load=load, folder=Path(folder), warm=bool(known))
    return [known[_alike(case)] for case in cases]


def _alike(case: Case) -> str:
    return replace(case, name="", defenses=(), first=0).key()


class _DidNotRun(Exception):
    """Ends the trial of a case that is refused or fails; the run meets it again and records it."""


def _cost(case: Case, *, load: Load, folder: Path, warm: bool) -> Cost:
    def run(steps: int) -> None:
        if run_case(with_steps(case, steps), load=load, folder=folder).status != "done":
            raise _DidNotRun

    try:
        return cost_of(run, warm=warm) if "steps" in accepted_options(case) else Cost()
    except _DidNotRun:
        return Cost()


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
    text = json.dumps({"format": FORMAT, **content}, indent=1, ensure_ascii=False)
    write_whole(folder / FILE, f"{text}\n".encode())


def read(folder: Path) -> Plan | Request:
    """The plan of an earlier run, or, where that was stopped before its plan was made, the request."""
    path = folder / FILE
    if not path.is_file():
        raise BadInput(f"nothing to resume: {folder} has no {FILE}; start the audit without --resume")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, list):
            return of_cases([_case(fields) for fields in found])
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']}")
        request = _request(found["request"])
        return request if "cases" not in found else _plan(request, found)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise BadInput(f"{path} is damaged; start the audit again without --resume") from error


def of_cases(cases: Sequence[Case]) -> Plan:
    """A plan of the question ``updates`` alone."""
    if not cases:
        raise ValueError("a plan without a case")
    request = Request(("updates",), cases[0], tuple(cases), (), cases[0], Effort())
    return Plan(request, cases=tuple(cases))


def _case(fields: Mapping[str, Any]) -> Case:
    return restored({**fields, "change": case_of(fields)["change"]})


def _request(fields: Mapping[str, Any]) -> Request:
    questions = tuple(question for question in QUESTIONS if question in fields["questions"])
    parts: dict[str, Any] = {name: _case(fields[name]) for name in ("main", "split")}
    parts |= {name: tuple(map(_case, fields[name])) for name in ("cases", "ladder")}
    return Request(**{**fields, **parts, "questions": questions, "effort": Effort(**fields["effort"])})


def _plan(request: Request, fields: Mapping[str, Any]) -> Plan:
    parts: dict[str, Any] = {name: tuple(map(_case, fields[name])) for name in ("cases", "ladder")}
    training = fields["training"]
    parts["training"] = None if training is None else TrainingPlan(**training)
    parts["trials"] = tuple(trial_from(one) for one in fields["trials"])
    parts["notes"] = tuple(fields["notes"])
    known = {name: fields[name] for name in ("epochs", "refusals", "estimates", "planning")}
    return Plan(request, **known, **parts)
