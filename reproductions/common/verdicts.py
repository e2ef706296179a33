"""The five words in which a claim of a paper is judged, and the rule of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    REPRODUCES = "reproduces"
    CONTRADICTS = "contradicts"
    NOT_REACHED = "not reached in our budget"
    NOT_TESTED = "not tested here"
    UNDECIDED = "undecided"

    @property
    def rule(self) -> str:
        return _RULES[self]


_RULES = {
    Word.REPRODUCES: "our measurement shows what the paper says, and every gate on data and network passed",
    Word.CONTRADICTS: "it shows the opposite, at the paper's scale, setting and metric, every gate and the control passed, "
    "over at least three seeds or images",
    Word.NOT_REACHED: "our search or training ended before it could show it",
    Word.NOT_TESTED: "data, weights or set-up are missing here, or what we ran asks another question",
    Word.UNDECIDED: "what we measured settles it for neither side: too few repeats, a difference within its error, or the opposite "
    "in a setting that may not be the paper's",
}

REPEATS = 3
"""Seeds or images without which nothing contradicts."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured for a claim. ``agrees`` is None where it points neither way.

    ``tested``: the claim itself was put to the test. ``finished``: searches converged and trainings ended, or it does not matter.
    """

    agrees: bool | None
    tested: bool = True
    finished: bool = True
    gates_passed: bool = True
    control_passed: bool = True
    papers_scale: bool = False
    papers_setting: bool = False
    papers_metric: bool = False
    repeats: int = 1


NOT_TESTED, NOT_REACHED = Evidence(agrees=None, tested=False), Evidence(agrees=None, finished=False)


def judged(evidence: Evidence) -> Word:
    if not evidence.tested or not evidence.gates_passed:
        return Word.NOT_TESTED
    if evidence.agrees:
        return Word.REPRODUCES
    if not evidence.finished or not evidence.control_passed:
        return Word.NOT_REACHED
    strict = evidence.papers_scale and evidence.papers_setting and evidence.papers_metric
    if evidence.agrees is False and strict and evidence.repeats >= REPEATS:
        return Word.CONTRADICTS
    return Word.UNDECIDED
