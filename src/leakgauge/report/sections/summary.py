"""The top of the report: the verdict on each question in plain sentences, what to do, and what all this does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakgauge.audit.advice import SHOWN, Advice, advise
from leakgauge.audit.findings import Findings
from leakgauge.audit.wording import LIMITS, Statement, statements

_BADGES: Mapping[str, str] = {
    "bad": "feasible",
    "partly": "partial",
    "good": "infeasible_within_budget",
    "none": "refused",
}
"""The looks of a badge by the tone of a verdict; they are those of the set-ups."""
_SEVERITIES: Mapping[str, tuple[str, str]] = {
    "act": ("Act", "feasible"),
    "check": ("Check", "partial"),
    "know": ("Know", "refused"),
}
_KINDS: Mapping[str, str] = {"case": "set-up", "defense": "trial"}
_MOST_LINKS = 4


def context(found: Findings) -> dict[str, Any]:
    """All that the template shows; links lead to the sections (by question) and to the set-ups."""
    advice = [_advice(one) for one in advise(found)]
    return {
        "verdicts": [_verdict(one) for one in statements(found)],
        "advice": advice[:SHOWN],
        "further": advice[SHOWN:],
        "limits": LIMITS,
    }


def _verdict(verdict: Statement) -> dict[str, Any]:
    return {
        "key": verdict.question,
        "asked": verdict.asked,
        "badge": _BADGES[verdict.tone],
        "word": verdict.badge,
        "sentences": verdict.sentences,
        "assumptions": verdict.assumptions,
        "budget": verdict.budget,
    }


def _advice(advice: Advice) -> dict[str, Any]:
    word, badge = _SEVERITIES[advice.severity]
    links = [(anchor, _named(anchor)) for anchor in advice.because]
    return {
        "rule": advice.rule,
        "word": word,
        "badge": badge,
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
