"""Which questions the page says were answered, refused, skipped or not reached."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from leakgauge.audit import answers
from leakgauge.audit.answers import Answer
from leakgauge.audit.case import Case
from leakgauge.audit.monitor_records import MonitorRun
from leakgauge.audit.plan import FILE as PLAN
from leakgauge.audit.records import append
from leakgauge.errors import BadInput
from leakgauge.report import contents
from leakgauge.report.page import write


def plan(folder: Path, *questions: str) -> None:
    (folder / PLAN).write_text(json.dumps({"format": 2, "request": {"questions": questions}}))


def test_without_a_whole_audit_the_rest_was_not_asked(tmp_path):
    (tmp_path / PLAN).write_text("[]")  # the cases of an earlier version
    found = contents.questions({"split": ""}, contents.told(tmp_path))
    assert [q.key for q in found.values()] == ["updates", "training", "split", "defenses"]
    assert [q.state for q in found.values()] == ["not asked", "not asked", "", "not asked"]
    assert [q.answered for q in found.values()] == [False, False, True, False]
    assert "Nothing is known about it" in found["updates"].note


def test_skipped_refused_failed_and_not_reached(tmp_path):
    plan(tmp_path, "updates", "training", "defenses")
    answers.append(tmp_path, Answer("updates", "answered"))
    answers.append(tmp_path, Answer("training", "refused", "too few images to train on"))
    found = contents.questions({"updates": ""}, contents.told(tmp_path))
    assert [q.state for q in found.values()] == ["", "refused", "skipped", "not reached"]
    assert found["training"].note == "Refused: too few images to train on"
    answers.append(tmp_path, Answer("defenses", "failed", "RuntimeError: boom"))
    partly = contents.questions({"updates": "", "defenses": ""}, contents.told(tmp_path))
    assert (partly["defenses"].state, partly["defenses"].answered) == (
        "failed",
        True,
    )  # what there is, and what happened


def test_records_that_another_command_added_are_no_skipped_question(tmp_path):
    plan(tmp_path, "updates")
    found = contents.questions({"updates": "", "split": "not finished"}, contents.told(tmp_path))
    assert (found["split"].state, found["split"].note) == ("not finished", "")


def test_a_damaged_plan_is_said(tmp_path):
    (tmp_path / PLAN).write_text("{")
    with pytest.raises(BadInput, match="is damaged"):
        contents.told(tmp_path)


def test_states_of_records(one):
    refused, broken = replace(one, status="refused"), replace(one, status="error")
    assert contents.state_of_cases([one, refused]) == ""
    assert contents.state_of_cases([refused]) == "refused"
    assert contents.state_of_cases([refused, broken]) == "no result"
    assert contents.state_of_training(MonitorRun({})) == "no result"
    looked = MonitorRun({}, reports=({"step": 1, "scalars": {}},))
    assert contents.state_of_training(looked) == "broke off"
    assert contents.state_of_training(replace(looked, end={"how": "finished"})) == ""


def test_the_page_shows_the_refusal_in_its_place_and_in_the_contents(tmp_path, one):
    append(tmp_path, one)
    plan(tmp_path, "updates", "split")
    answers.append(tmp_path, Answer("updates", "answered"))
    answers.append(tmp_path, Answer("split", "refused", "no <cut> found"))
    page = write(tmp_path).read_text("utf-8")
    assert '<a href="#split">Split</a> <small>refused</small>' in page
    assert '<a href="#training">Training</a> <small>skipped</small>' in page
    section = re.search(r'<section class="question open" id="split".*?</section>', page, flags=re.S)
    assert section
    assert "Refused: no &lt;cut&gt; found" in section[0]


def test_the_page_of_a_stopped_run_says_what_of_its_plan_was_not_done(tmp_path, one):
    append(tmp_path, one)
    fields = {"format": 2, "request": {"questions": ["updates"]}, "cases": [asdict(Case())], "ladder": []}
    (tmp_path / PLAN).write_text(json.dumps(fields))
    page = write(tmp_path).read_text("utf-8")
    assert '<a href="#updates">Updates</a> <small>not finished</small>' in page
    said = "1 of 1 planned set-up was not attacked: the run was stopped before."
    assert page.count(said) == 2  # on the first page and in the section
    answers.append(tmp_path, Answer("updates", "answered"))
    assert said not in write(tmp_path).read_text("utf-8")
