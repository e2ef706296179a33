"""How far an audit came that was stopped, and that its page says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakgauge.audit import plan, records
from leakgauge.audit.advice import advise
from leakgauge.audit.case import Case
from leakgauge.audit.findings import Unanswered, read_findings
from leakgauge.audit.plan import Plan
from leakgauge.audit.questions import answers, defense_records
from leakgauge.audit.questions.answers import Answer, Waiting
from leakgauge.audit.questions.defense_records import Trial
from leakgauge.audit.request import Effort, Request
from leakgauge.audit.wording import statements
from leakgauge.errors import BadInput
from tests.made import INFEASIBLE, record, tried

CASES = tuple(Case(batch_size=size) for size in (1, 2, 3))
RENAMED = Case(name="a change", batch_size=3)  # does what the third case does
TRIALS = tuple(Trial(Case(defenses=defenses), train_steps=1) for defenses in ((), ("prune:0.5",)))


def planned(folder: Path) -> None:
    request = Request(("updates", "split", "defenses"), CASES[0], CASES, (RENAMED,), CASES[0], Effort())
    plan.save(folder, Plan(request, cases=CASES, ladder=(RENAMED,), trials=TRIALS))


def attacked(folder: Path, case: Case) -> None:
    records.append(folder, record(INFEASIBLE, case=case))


def test_without_a_plan_nothing_is_late(tmp_path):
    assert (answers.not_reached(tmp_path), answers.waiting(tmp_path)) == ((), ())


def test_what_has_no_record_is_counted_once(tmp_path):
    planned(tmp_path)
    assert answers.waiting(tmp_path) == ()  # nothing was begun
    attacked(tmp_path, CASES[0])
    assert answers.waiting(tmp_path) == (Waiting("updates", 2, 3),)
    attacked(tmp_path, RENAMED)
    assert answers.waiting(tmp_path) == (Waiting("updates", 1, 3),)
    answers.append(tmp_path, Answer("updates", "answered"))
    assert answers.waiting(tmp_path) == ()
    assert answers.not_reached(tmp_path) == ("split", "defenses")


def test_trials_are_counted_too(tmp_path):
    planned(tmp_path)
    first = TRIALS[0]
    defense_records.append(tmp_path, tried("", None, key=first.key(), trial=first))
    assert answers.waiting(tmp_path) == (Waiting("defenses", 1, 2),)


def test_a_stopped_audit_does_not_read_like_one_that_was_not_asked(tmp_path):
    planned(tmp_path)
    attacked(tmp_path, CASES[0])
    found = read_findings(tmp_path)
    assert found.unanswered == (
        Unanswered("training"),
        Unanswered("split", reached=False),
        Unanswered("defenses", reached=False),
    )
    said = {one.question: one for one in statements(found)}
    assert said["updates"].sentences[-1] == "The run was stopped: 2 of 3 planned set-ups were not attacked."
    assert [said[q].badge for q in ("training", "split", "defenses")] == ["Not asked", "Not reached", "Not reached"]
    resume = next(one for one in advise(found) if one.rule == "resume")
    assert resume.why.endswith("2 of 3 planned set-ups were not attacked; not reached: split, defenses.")
    assert resume.because == ("updates",)


@pytest.mark.parametrize("content", ["{", '{"request": {"questions": ["updates"]}, "cases": [{"model": "cnn"}]}'])
def test_a_damaged_plan_is_said(tmp_path, content):
    attacked(tmp_path, CASES[0])
    (tmp_path / plan.FILE).write_text(content)
    with pytest.raises(BadInput, match=r"cannot be read: .*; move it away"):
        read_findings(tmp_path)
