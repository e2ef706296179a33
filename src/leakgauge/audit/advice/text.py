"""The first page of the report as plain text: all of it for scripts, what to do for the end of an audit."""

from __future__ import annotations

import textwrap

from leakgauge.audit.advice.advise import advise
from leakgauge.audit.advice.sentences import LIMITS, verdicts
from leakgauge.audit.findings import Findings

SHOWN = 7
"""Pieces of advice that a reader takes in at once; further ones are counted, and stand in the report."""


def as_text(found: Findings, *, width: int = 100) -> str:
    """The verdict on each question with assumptions and budget, then what to do."""
    lines = []
    for verdict in verdicts(found):
        lines += [f"{verdict.asked}  {verdict.word}", *_wrapped(" ".join(verdict.sentences), width)]
        lines += [line for kind, what in verdict.assumptions for line in _wrapped(f"{kind}: {what}", width)]
        lines += [*(_wrapped(f"budget: {verdict.budget}", width) if verdict.budget else []), ""]
    return "\n".join([*lines, to_do_as_text(found, width=width)])


def to_do_as_text(found: Findings, *, width: int = 100) -> str:
    """What to do, most important first, and what a negative verdict does not say."""
    advice = advise(found)
    lines = ["What to do", *([] if advice else ["  Nothing follows from what was measured."])]
    for number, one in enumerate(advice[:SHOWN], start=1):
        lines += _wrapped(one.title, width, first=f"  {number}. ", indent="     ")
        lines += _wrapped(one.why, width, first="     ", indent="     ")
    if len(advice) > SHOWN:
        lines.append(f"  and {len(advice) - SHOWN} more in the report")
    return "\n".join([*lines, "", *_wrapped(LIMITS[0], width, first="", indent="")])


def _wrapped(text: str, width: int, *, first: str = "  ", indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
