"""Applies the rules to what was found."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.audit.advice.rules import RULES, Rule, Severity
from leakgauge.audit.findings import Findings


@dataclass(frozen=True)
class Advice:
    """One thing to do, why, and where in the report the evidence stands (anchors, most telling first)."""

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
