"""Questions without an answer."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.audit.questions import Question


@dataclass(frozen=True)
class Unanswered:
    """A question without an answer: it was not asked (no reason), it was refused, or it ``failed`` unexpectedly.

    ``reached`` is False where it was asked, and the run was stopped before it came to it.
    """

    question: Question
    reason: str = ""
    failed: bool = False
    reached: bool = True
