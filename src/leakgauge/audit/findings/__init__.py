"""What a run folder says about the four questions: every number that is derived from records, once.

Pages, terminal, gate, comparison and advice read findings; :mod:`leakgauge.audit.wording` makes sentences of them. A rule or a threshold
that decides what a number means (when a critic counts, when a control fails, when a defense is cheap) is a name in this package.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leakgauge.audit import records
from leakgauge.audit.findings.defenses import LEAST_DROP, MOST_POINTS, Defended, Defenses, broken_by, defenses_of
from leakgauge.audit.findings.split import Split, split_of
from leakgauge.audit.findings.training import ALMOST_ALL_MEMBERS, EARLY, Measured, Training, counted, training_of
from leakgauge.audit.findings.updates import EXPLAINED, MISFIT, Flip, Update, Updates, updates_of
from leakgauge.audit.questions import ON_REQUEST, QUESTIONS, answers, defense_records
from leakgauge.audit.questions import properties as property_records
from leakgauge.audit.questions import split_records as scan_records
from leakgauge.audit.questions import training as monitor_records
from leakgauge.audit.questions.answers import Unanswered, Waiting
from leakgauge.audit.questions.properties import PropertyRecord
from leakgauge.monitor.leakage import CONTROL_LIMIT, NOISE_LIMIT, SETTLED

__all__ = [
    "ALMOST_ALL_MEMBERS",
    "CONTROL_LIMIT",
    "EARLY",
    "EXPLAINED",
    "LEAST_DROP",
    "MISFIT",
    "MOST_POINTS",
    "NOISE_LIMIT",
    "SETTLED",
    "Defended",
    "Defenses",
    "Findings",
    "Flip",
    "Measured",
    "Split",
    "Training",
    "Unanswered",
    "Update",
    "Updates",
    "counted",
    "defenses_of",
    "read_findings",
    "split_of",
    "training_of",
    "updates_of",
]


@dataclass(frozen=True)
class Findings:
    """What is known of each question; None where it has no answer, and then ``unanswered`` says why.

    ``waiting`` holds questions that are answered in part, since the run was stopped; ``incomplete`` those that have records although
    they were refused or failed before the end.
    """

    updates: Updates | None = None
    training: Training | None = None
    split: Split | None = None
    defenses: Defenses | None = None
    properties: tuple[PropertyRecord, ...] | None = None
    unanswered: tuple[Unanswered, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    incomplete: tuple[Unanswered, ...] = ()

    def __post_init__(self) -> None:
        """Whether a defense held depends on the set-ups too: one that leaks under the same defense breaks it."""
        if self.defenses is not None and self.updates is not None:
            broken = broken_by(self.defenses.rows, self.defenses.model, self.updates.own)
            object.__setattr__(self, "defenses", replace(self.defenses, broken=broken))


def read_findings(folder: Path) -> Findings:
    """Everything that the files in ``folder`` say. A question without records was not asked, or the audit says why."""
    said, late = answers.read(folder), answers.not_reached(folder)
    found: dict[str, Any] = {question: Unanswered(question) for question in QUESTIONS}
    if records.exists(folder):
        found["updates"] = updates_of(records.read(folder))
    if monitor_records.exists(folder):
        found["training"] = training_of(monitor_records.read(folder))
    if scan_records.exists(folder):
        end = scan_records.read_conclusion(folder)
        found["split"] = split_of(scan_records.read_plan(folder), scan_records.read(folder), end)
    if defense_records.exists(folder):
        found["defenses"] = defenses_of(defense_records.read(folder))
    if property_records.exists(folder):
        found["properties"] = property_records.read(folder) or Unanswered("properties")
    missing: list[Unanswered] = []
    partly: list[Unanswered] = []
    for question in QUESTIONS:
        answer = found[question]
        if answer == Unanswered(question) and question in ON_REQUEST and question not in {*said, *late}:
            found[question] = None
            continue
        if answer == Unanswered(question) and (ended := said.get(question)):
            answer = Unanswered(question, ended.reason or ended.status, failed=ended.status == "failed")
        elif answer == Unanswered(question):
            answer = Unanswered(question, reached=question not in late)
        if isinstance(answer, Unanswered):
            missing.append(answer)
            found[question] = None
        elif (ended := said.get(question)) and ended.status != "answered":
            partly.append(Unanswered(question, ended.reason or ended.status, failed=ended.status == "failed"))
    return Findings(**found, unanswered=tuple(missing), waiting=answers.waiting(folder), incomplete=tuple(partly))
