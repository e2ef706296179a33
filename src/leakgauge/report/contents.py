"""The four questions of an audit as the page's sections, also those that this run does not answer; and how each went."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from leakgauge.audit import answers, stopped
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.questions import QUESTIONS
from leakgauge.audit.records import Record

BEGUN = "not finished"
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
    for key, title in QUESTIONS.items():
        state, note = told.get(key, _LEFT_OUT)
        if key in answered and state not in ("refused", "failed", BEGUN):  # there are records, whoever made them
            state, note = answered[key], ""
        found[key] = Question(key, key.capitalize(), title, key in answered, state, note)
    return found


def state_of_cases(records: Collection[Record]) -> str:
    """Empty where at least one set-up has a result."""
    ended = {record.status for record in records}
    return "" if "done" in ended else "refused" if ended == {"refused"} else "no result"


def state_of_training(run: MonitorRun) -> str:
    return "no result" if not run.reports else "" if run.end.get("how") == "finished" else "broke off"


def told(folder: Path) -> dict[str, tuple[str, str]]:
    """What a whole audit wrote down about questions that it refused, failed at or did not get to: a word and a sentence."""
    asked, answered = stopped.asked(folder), answers.read(folder)
    said = {
        key: (answer.status, f"{answer.status.capitalize()}: {answer.reason or 'no reason was recorded'}")
        for key, answer in answered.items()
        if answer.status != "answered"
    }
    for key in QUESTIONS if asked is not None else ():
        if asked is not None and key not in answered:
            late = "not reached", f"The run was stopped before it came to this question. {_NOTHING}"
            said[key] = late if key in asked else ("skipped", f"Skipped when the audit was started. {_NOTHING}")
    for begun in stopped.waiting(folder):
        said[begun.question] = BEGUN, f"{begun}: the run was stopped before. Go on with it by leakgauge audit --resume."
    return {str(key): what for key, what in said.items()}
