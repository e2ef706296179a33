"""How far a whole audit came that was stopped: which questions it was asked, and what of its plan has no record yet.

A page that is made of such a run must say so, or what was never attacked reads like what was never asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leakgauge.audit import answers, defense_records, records
from leakgauge.audit.case import restored
from leakgauge.audit.defense_records import trial_from
from leakgauge.audit.plan import FILE
from leakgauge.audit.questions import QUESTIONS, Question
from leakgauge.errors import BadInput


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
    said = answers.read(folder)
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
        if "defenses" in open_ and defense_records.exists(folder):
            planned = {trial_from(fields).key() for fields in plan.get("trials", ())}
            done = {record.key for record in defense_records.read(folder)}
            found.append(Waiting("defenses", len(planned - done), len(planned)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(folder) from error
    return tuple(one for one in found if one.missing)


def _plan(folder: Path) -> Mapping[str, Any]:
    path = folder / FILE
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise _damaged(folder) from error
    return found if isinstance(found, Mapping) else {}


def _damaged(folder: Path) -> BadInput:
    return BadInput(f"{folder / FILE} is damaged; move it away to see the report without it")
