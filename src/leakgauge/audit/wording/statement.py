"""One question's answer, as every view shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from leakgauge.audit.questions import Question
from leakgauge.audit.verdict import Outcome

Tone = Literal["bad", "partly", "good", "none"]
State = Literal["answered", "unfinished", "no_result", "not_asked", "not_reached"]


@dataclass(frozen=True)
class Statement:
    """One question's answer: a badge, sentences, what is assumed (by kind) and what was spent."""

    question: Question
    asked: str
    tone: Tone
    badge: str
    sentences: tuple[str, ...]
    assumptions: tuple[tuple[str, str], ...] = ()
    budget: str = ""
    state: State = "answered"

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


BADGES: Mapping[Outcome, tuple[Tone, str]] = {
    Outcome.FEASIBLE: ("bad", "Leaks"),
    Outcome.PARTIAL: ("partly", "Leaks in part"),
    Outcome.INCONCLUSIVE: ("none", "Inconclusive"),
    Outcome.INFEASIBLE: ("good", "Held"),
}


def by_kind(
    deployable: Sequence[str], diagnostic: Sequence[str], malicious: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    kinds = (("deployable", deployable), ("diagnostic", diagnostic), ("malicious", malicious))
    return tuple((kind, "; ".join(dict.fromkeys(what))) for kind, what in kinds if what)
