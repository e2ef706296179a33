"""What became of each question of an audit: one line of ``questions.jsonl`` per question, when it is done with.

A refusal (too few images to scan, a model that cannot be watched) is an answer of its own, with its reason; it is never a score.
A page that is made of a stopped run must say what of its plan has no record yet, or what was never attacked reads like what was never
asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit import records
from leakgauge.audit.case import restored
from leakgauge.audit.files import JsonLines
from leakgauge.audit.plan import FILE as PLAN
from leakgauge.audit.questions import QUESTIONS, Question, defenses
from leakgauge.audit.questions.defenses import trial_from
from leakgauge.errors import BadInput

FILE = "questions.jsonl"
STATUSES = ("answered", "refused", "failed")


@dataclass(frozen=True)
class Answer:
    """``reason`` says why a question was refused or how it failed. ``seconds`` were spent on it since the last start."""

    question: Question
    status: Literal["answered", "refused", "failed"]
    reason: str = ""
    seconds: float = 0.0
    finished: str = ""


def _decode(fields: dict[str, Any]) -> Answer:
    answer = Answer(**fields)
    if answer.question not in QUESTIONS or answer.status not in STATUSES:
        raise ValueError(f"{answer.question} {answer.status}")
    return answer


STORE = JsonLines(FILE, encode=asdict, decode=_decode, missing="{folder} has no {file}")


def append(folder: Path, answer: Answer) -> Answer:
    """Adds the answer, with the time (UTC) at which it was there; whole or not at all."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = replace(answer, seconds=round(answer.seconds, 2), finished=answer.finished or now)
    STORE.append(folder, made)
    return made


def read(folder: Path) -> dict[Question, Answer]:
    """What became of each question so far, in their order. Of two lines on one question the later one counts."""
    found = {answer.question: answer for answer in STORE.read_if_there(folder)}
    return {question: found[question] for question in QUESTIONS if question in found}


@dataclass(frozen=True)
class Waiting:
    """A question that a stopped run had begun: of ``total`` planned set-ups or trials ``missing`` have no record."""

    question: Question
    missing: int
    total: int


def asked(folder: Path) -> tuple[Question, ...] | None:
    """The questions of the plan; None where there is no plan of a whole audit."""
    request = _plan(folder).get("request")
    if not isinstance(request, Mapping):
        return None
    return tuple(question for question in QUESTIONS if question in (request.get("questions") or ()))


def not_reached(folder: Path) -> tuple[Question, ...]:
    """Questions that were asked and that nothing is on record of, neither an answer nor a refusal."""
    said = read(folder)
    return tuple(question for question in asked(folder) or () if question not in said)


def waiting(folder: Path) -> tuple[Waiting, ...]:
    """Questions that were begun: how many of the planned set-ups or trials have no record."""
    plan, open_ = _plan(folder), not_reached(folder)
    found = []
    try:
        if "updates" in open_ and records.exists(folder):
            planned = {restored(fields).content_key() for fields in (*plan.get("cases", ()), *plan.get("ladder", ()))}
            done = {record.case.content_key() for record in records.read(folder)}
            found.append(Waiting("updates", len(planned - done), len(planned)))
        if "defenses" in open_ and defenses.exists(folder):
            planned = {trial_from(fields).key() for fields in plan.get("trials", ())}
            done = {record.key for record in defenses.read(folder)}
            found.append(Waiting("defenses", len(planned - done), len(planned)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(folder) from error
    return tuple(one for one in found if one.missing)


def _plan(folder: Path) -> Mapping[str, Any]:
    path = folder / PLAN
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise _damaged(folder) from error
    return found if isinstance(found, Mapping) else {}


def _damaged(folder: Path) -> BadInput:
    return BadInput(f"{folder / PLAN} is damaged; move it away to see the report without it")
