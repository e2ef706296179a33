"""What became of each question of an audit: one line of ``questions.jsonl`` per question, when it is done with.

A refusal (too few images to scan, a model that cannot be watched) is an answer of its own, with its reason; it is never a score.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from leakgauge.audit.files import JsonLines
from leakgauge.audit.questions import QUESTIONS, Question

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
