"""From cases to verdicts: the honest part, where null runs and baselines are never left out."""

from leakgauge.audit.case import Case
from leakgauge.audit.evaluate_text import TextResult, evaluate_text
from leakgauge.audit.run import run_all, run_case
from leakgauge.audit.scoring import Scores, TextScores, score, score_text
from leakgauge.audit.session import Setup, embedded
from leakgauge.audit.tables import TableResult, TableScores, TableVerdict, evaluate_table, judge_table, score_table
from leakgauge.audit.text_verdict import TextVerdict, judge_text
from leakgauge.audit.verdict import Verdict, judge

__all__ = [
    "Case",
    "Scores",
    "Setup",
    "TableResult",
    "TableScores",
    "TableVerdict",
    "TextResult",
    "TextScores",
    "TextVerdict",
    "Verdict",
    "embedded",
    "evaluate_table",
    "evaluate_text",
    "judge",
    "judge_table",
    "judge_text",
    "run_all",
    "run_case",
    "score",
    "score_table",
    "score_text",
]
