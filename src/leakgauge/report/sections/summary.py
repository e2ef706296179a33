"""The top of the report: the answer to each question, what to do, and what all this does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leakgauge.audit.advice import SHOWN, Advice, advise
from leakgauge.audit.findings import Findings
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import LIMITS, statements
from leakgauge.report.sections import LOOKS

_SEVERITIES: Mapping[str, tuple[str, str]] = {
    "act": ("Act", Outcome.FEASIBLE),
    "check": ("Check", Outcome.PARTIAL),
    "know": ("Know", "refused"),
}
_KINDS: Mapping[str, str] = {"case": "set-up", "defense": "trial"}
_MOST_LINKS = 4


def section(found: Findings, cases: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """All that the template shows; links lead to the sections (by question) and to the set-ups (``cases`` of the section on updates)."""
    advice = [_advice(one) for one in advise(found)]
    return {
        "answers": [{"statement": one, "looks": LOOKS[one.tone]} for one in statements(found)],
        "seen": _seen(found, cases),
        "advice": advice[:SHOWN],
        "further": advice[SHOWN:],
        "limits": LIMITS,
    }


def _seen(found: Findings, cases: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The pictures of the set-up that the first answer is about: its first images as they were and as they were found."""
    worst = None if found.updates is None else found.updates.worst
    if worst is None or not worst.leaks:
        return None
    case = next((case for case in cases if case["number"] == worst.number), None)
    if case is None or not case["groups"] or not case["shows_truth"]:
        return None
    group = case["groups"][0]
    strips = [strip for strip in group["strips"] if strip["kind"] in ("truth", "reconstruction")]
    return {key: case[key] for key in ("id", "number", "name")} | {"group": {**group, "strips": strips}}


def _advice(advice: Advice) -> dict[str, Any]:
    word, looks = _SEVERITIES[advice.severity]
    links = [(anchor, _named(anchor)) for anchor in advice.because]
    return {
        "rule": advice.rule,
        "word": word,
        "looks": looks,
        "title": advice.title,
        "why": advice.why,
        "links": links[:_MOST_LINKS],
        "unlinked": max(0, len(links) - _MOST_LINKS),
    }


def _named(anchor: str) -> str:
    """
    >>> _named("case-3"), _named("defense-2"), _named("split")
    ('set-up 3', 'trial 2', 'split')
    """
    kind, _, number = anchor.partition("-")
    return f"{_KINDS[kind]} {number}" if kind in _KINDS else anchor
