"""What became of each question of an audit: one line of ``questions.jsonl`` per question, when it is done with.

A refusal (too few images to scan, a model that cannot be watched) is an answer of its own, with its reason; it is never a score.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from leakgauge.audit.files import append_line, line_of, whole_lines
from leakgauge.audit.questions import QUESTIONS, Question
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


def append(folder: Path, answer: Answer) -> Answer:
    """Adds the answer, with the time (UTC) at which it was there; whole or not at all."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = {**asdict(answer), "seconds": round(answer.seconds, 2), "finished": answer.finished or now}
    append_line(folder / FILE, line_of(line))
    return Answer(**line)


def read(folder: Path) -> dict[Question, Answer]:
    """What became of each question so far, in their order. Of two lines on one question the later one counts."""
    path = folder / FILE
    found: dict[str, Answer] = {}
    for number, line in whole_lines(path) if path.is_file() else ():
        try:
            answer = Answer(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise BadInput(f"line {number} of {path} is not an answer of this version; delete that line") from error
        if answer.question not in QUESTIONS or answer.status not in STATUSES:
            raise BadInput(f"line {number} of {path} is not an answer of this version; delete that line")
        found[answer.question] = answer
    return {question: found[question] for question in QUESTIONS if question in found}
