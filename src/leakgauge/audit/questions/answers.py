"""What became of each question of an audit: one line of ``questions.jsonl`` per question, when it is done with.

A refusal (too few images to scan, a model that cannot be watched) is an answer of its own, with its reason; it is never a score.
A page that is made of a stopped run must say what of its plan has no record yet, or what was never attacked reads like what was never
asked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from leakgauge.audit import plan, records
from leakgauge.audit.files import JsonLines
from leakgauge.audit.questions import QUESTIONS, Question
from leakgauge.audit.questions import defense_records as defenses
from leakgauge.audit.typed import typed

FILE = "questions.jsonl"


@dataclass(frozen=True)
class Answer:
    """``reason`` says why a question was refused or how it failed. ``seconds`` were spent on it since the last start."""

    question: Question
    status: Literal["answered", "refused", "failed"]
    reason: str = ""
    seconds: float = 0.0
    finished: str = ""


STORE = JsonLines(FILE, encode=asdict, decode=partial(typed, Answer), missing="{folder} has no {file}")


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


@dataclass(frozen=True)
class Unanswered:
    """A question without an answer: it was not asked (no reason), it was refused, or it ``failed`` unexpectedly.

    ``reached`` is False where it was asked, and the run was stopped before it came to it.
    """

    question: Question
    reason: str = ""
    failed: bool = False
    reached: bool = True


def not_reached(folder: Path) -> tuple[Question, ...]:
    """Questions that were asked and that nothing is on record of, neither an answer nor a refusal."""
    said, planned = read(folder), plan.of_audit(folder)
    return () if planned is None else tuple(question for question in planned.questions if question not in said)


def waiting(folder: Path) -> tuple[Waiting, ...]:
    """Questions that were begun: how many of the planned set-ups or trials have no record."""
    planned, open_, found = plan.of_audit(folder), not_reached(folder), []
    if not isinstance(planned, plan.Plan):
        return ()
    if "updates" in open_ and records.exists(folder):
        cases = {case.content_key() for case in planned.every_case}
        done = {record.case.content_key() for record in records.read(folder)}
        found.append(Waiting("updates", len(cases - done), len(cases)))
    if "defenses" in open_ and defenses.exists(folder):
        trials = {trial.key() for trial in planned.trials}
        done = {record.key for record in defenses.read(folder)}
        found.append(Waiting("defenses", len(trials - done), len(trials)))
    return tuple(one for one in found if one.missing)
