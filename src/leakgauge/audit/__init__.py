"""From cases to verdicts: the honest part, where null runs and baselines are never left out."""

from leakgauge.audit.case import Case
from leakgauge.audit.run import run_all, run_case
from leakgauge.audit.scoring import Scores, TextScores, score, score_text
from leakgauge.audit.session import Setup, embedded
from leakgauge.audit.verdict import Verdict, judge

__all__ = [
    "Case",
    "Scores",
    "Setup",
    "TextScores",
    "Verdict",
    "embedded",
    "judge",
    "run_all",
    "run_case",
    "score",
    "score_text",
]
