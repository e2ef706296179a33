"""From findings to a short list of what to do, by stated rules, and the same as plain text."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from leakgauge.audit.advice.rules import EXCLUSIVE, RULES, Rule, Severity
from leakgauge.audit.findings import Findings
from leakgauge.audit.wording import LIMITS, statements

SHOWN = 7
"""Pieces of advice that a reader takes in at once; the report lists the others too."""


@dataclass(frozen=True)
class Advice:
    """One thing to do, why, and where in the report the evidence is (anchors, most important first)."""

    rule: str
    severity: Severity
    title: str
    why: str
    because: tuple[str, ...]


def advise(found: Findings, *, rules: tuple[Rule, ...] = RULES) -> tuple[Advice, ...]:
    """What follows from the findings, most important first."""
    advice = []
    for rule in rules:
        match = rule.when(found)
        if match is not None:
            title, why = (text.format(**match.facts) for text in (rule.title, rule.why))
            advice.append(Advice(rule.name, rule.severity, title, why, match.evidence))
    return tuple(advice)


def as_text(found: Findings, *, width: int = 100) -> str:
    """The first page of the report as text: the answer to each question with assumptions and budget, then what to do."""
    lines = []
    for one in statements(found):
        lines += [f"{one.asked}  {one.badge}", *_wrapped(one.text, width)]
        lines += [line for kind, what in one.assumptions for line in _wrapped(f"{kind}: {what}", width)]
        lines += [*(_wrapped(f"budget: {one.budget}", width) if one.budget else []), ""]
    return "\n".join([*lines, to_do_as_text(found, width=width)])


def to_do_as_text(found: Findings, *, width: int = 100) -> str:
    """What to do, most important first, and what a negative verdict does not say."""
    advice = advise(found)
    lines = ["What to do", *([] if advice else ["  Nothing follows from what was measured."])]
    for place, one in enumerate(advice[:SHOWN], start=1):
        lines += _wrapped(one.title, width, first=f"  {place}. ", indent="     ")
        lines += _wrapped(one.why, width, first="     ", indent="     ")
    if len(advice) > SHOWN:
        lines.append(f"  and {len(advice) - SHOWN} more in the report")
    return "\n".join([*lines, "", *_wrapped(LIMITS[0], width, first="", indent="")])


def _wrapped(text: str, width: int, *, first: str = "  ", indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


__all__ = ["EXCLUSIVE", "RULES", "SHOWN", "Advice", "Rule", "Severity", "advise", "as_text", "to_do_as_text"]
