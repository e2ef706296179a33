"""What an audit will do. It is kept in ``plan.json``, and a resumed run does the same.

The request is written before anything is measured and the plan when it is made, so a run can be resumed from its first second on. While
an audit with a budget runs, the plan follows what is done with the time that is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.audit.case import Case, present_fields
from leakgauge.audit.control import Extent
from leakgauge.audit.files import json_text, read_json, write_whole
from leakgauge.audit.questions import Question
from leakgauge.audit.questions.defense_records import Trial
from leakgauge.audit.questions.properties import PropertyPlan
from leakgauge.audit.questions.training import TrainingPlan
from leakgauge.audit.request import Effort, Request
from leakgauge.audit.typed import Misfit, typed
from leakgauge.errors import BadInput

FILE = "plan.json"
FORMAT = 2
"""Of the file. Before it, the file was a list of cases: a plan of the question ``updates`` alone."""


@dataclass(frozen=True)
class Plan:
    """What the audit does. ``refusals`` maps a question that cannot be answered to the reason.

    ``estimates`` holds the seconds that each question may still take, ``planning`` those that went into finding out; the first attacks
    of a scan, which count, are in neither. ``controls`` says which controls of the attack there is time for. ``waiting`` maps a question
    that was left out for lack of time to the seconds that it takes at least: it is asked if time is left in the end.
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
    waiting: Mapping[str, float] = field(default_factory=dict)
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
