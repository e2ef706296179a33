"""The four questions of an audit as the page's sections, also those that this run does not answer; and how each went."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.records import Record
from leakgauge.errors import BadInput

PLAN, ANSWERS = "plan.json", "questions.jsonl"
_QUESTIONS = (
    ("updates", "Updates", "What could be reconstructed from updates?"),
    ("training", "Training", "How does leakage move during training?"),
    ("split", "Split", "Where may the network be cut?"),
    ("defenses", "Defenses", "What do defenses buy?"),
)
_NOTHING = "Nothing is known about it from this run: neither that something leaks nor that it does not."
_LEFT_OUT = "not asked", f"Not asked in this run. {_NOTHING}"


@dataclass(frozen=True)
class Question:
    """One section. ``state`` is a word for the contents, empty where all went well; ``note`` says what happened."""

    key: str
    name: str
    title: str
    answered: bool
    state: str = ""
    note: str = ""


def questions(answered: Mapping[str, str], told: Mapping[str, tuple[str, str]]) -> dict[str, Question]:
    """The questions by key, in the order of the page.

    ``answered`` holds those that have records, with a word where the records are not whole; ``told`` is of :func:`told`.
    """
    found = {}
    for key, name, title in _QUESTIONS:
        state, note = told.get(key, _LEFT_OUT)
        if key in answered and state not in ("refused", "failed"):  # there are records, whoever made them
            state, note = answered[key], ""
        found[key] = Question(key, name, title, key in answered, state, note)
    return found


def state_of_cases(records: Collection[Record]) -> str:
    """Empty where at least one set-up has a result."""
    ended = {record.status for record in records}
    return "" if "done" in ended else "refused" if ended == {"refused"} else "no result"


def state_of_training(run: MonitorRun) -> str:
    return "no result" if not run.reports else "" if run.end.get("how") == "finished" else "broke off"


def told(folder: Path) -> dict[str, tuple[str, str]]:
    """What a whole audit wrote down about questions that it refused, failed at or did not get to: a word and a sentence."""
    asked = _asked(folder / PLAN)
    said = {}
    for answer in _answers(folder / ANSWERS):
        how, reason = str(answer.get("status")), str(answer.get("reason") or "no reason was recorded")
        said[str(answer.get("question"))] = None if how == "answered" else (how, f"{how.capitalize()}: {reason}")
    if asked is not None:
        for key, _, _ in _QUESTIONS:
            late = "not reached", f"The run was stopped before it came to this question. {_NOTHING}"
            skipped = "skipped", f"Skipped when the audit was started. {_NOTHING}"
            said.setdefault(key, late if key in asked else skipped)
    return {key: what for key, what in said.items() if what is not None}


def _asked(path: Path) -> Sequence[str] | None:
    """The questions of the plan; None where there is no plan of a whole audit."""
    found = _parsed(path, path.read_bytes()) if path.is_file() else None
    request = found.get("request") if isinstance(found, Mapping) else None
    return request.get("questions") if isinstance(request, Mapping) else None


def _answers(path: Path) -> list[Mapping[str, Any]]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []  # half a line never counted
    return [_parsed(path, line) for line in lines]


def _parsed(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"{path} is damaged; move it away to see the report without it") from error
