"""What a whole audit was asked for and what it will do, kept in ``plan.json`` so that a resumed run does the same.

The request is written before anything is measured and the plan when it is made, so a run can be resumed from its first second on.
A list of cases, which is all that ``plan.json`` held in earlier versions, is a plan of the question ``updates`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.audit.case import Case, restored
from leakgauge.audit.defense_records import Trial, trial_from
from leakgauge.audit.files import write_whole
from leakgauge.audit.questions import QUESTIONS, Question
from leakgauge.audit.training import TrainingPlan
from leakgauge.errors import BadInput

FILE = "plan.json"
FORMAT = 2


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
class WholePlan:
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


def save_request(folder: Path, request: Request) -> None:
    write_whole(folder / FILE, _json({"format": FORMAT, "request": asdict(request)}))


def save(folder: Path, plan: WholePlan) -> None:
    write_whole(folder / FILE, _json({"format": FORMAT, **asdict(plan)}))


def read(folder: Path) -> WholePlan | Request:
    """The plan of an earlier run, or, where that was stopped before its plan was made, the request."""
    path = folder / FILE
    if not path.is_file():
        raise BadInput(f"nothing to resume: {folder} has no {FILE}; start the audit without --resume")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, list):
            return of_cases([restored(fields) for fields in found])
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']}")
        request = _request(found["request"])
        return request if "cases" not in found else _plan(request, found)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise BadInput(f"{path} is damaged; start the audit anew without --resume") from error


def of_cases(cases: Sequence[Case]) -> WholePlan:
    """A plan of the question ``updates`` alone."""
    if not cases:
        raise ValueError("a plan without a case")
    request = Request(("updates",), cases[0], tuple(cases), (), cases[0], Effort())
    return WholePlan(request, cases=tuple(cases))


def _request(fields: Mapping[str, Any]) -> Request:
    questions = tuple(question for question in QUESTIONS if question in fields["questions"])
    parts: dict[str, Any] = {name: restored(fields[name]) for name in ("main", "split")}
    parts |= {name: tuple(restored(one) for one in fields[name]) for name in ("cases", "ladder")}
    return Request(**{**fields, **parts, "questions": questions, "effort": Effort(**fields["effort"])})


def _plan(request: Request, fields: Mapping[str, Any]) -> WholePlan:
    parts: dict[str, Any] = {name: tuple(restored(one) for one in fields[name]) for name in ("cases", "ladder")}
    training = fields["training"]
    parts["training"] = None if training is None else TrainingPlan(**training)
    parts["trials"] = tuple(trial_from(one) for one in fields["trials"])
    parts["notes"] = tuple(fields["notes"])
    known = {name: fields[name] for name in ("epochs", "refusals", "estimates", "planning")}
    return WholePlan(request, **known, **parts)


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
