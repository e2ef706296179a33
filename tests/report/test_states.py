"""What the page says of questions that were refused, failed, left out, not reached or not finished."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leakgauge.audit import plan as plans
from leakgauge.audit.case import Case
from leakgauge.audit.findings import read_findings
from leakgauge.audit.questions import answers
from leakgauge.audit.questions.answers import Answer
from leakgauge.audit.questions.training import MonitorRun
from leakgauge.audit.records import Record, append
from leakgauge.audit.wording import statements
from leakgauge.errors import BadInput
from leakgauge.report.page import render
from tests.report.made_training import store_monitored


def plan(folder: Path, *questions: str, cases: tuple[Case, ...] = ()) -> None:
    asked = plans.Request(questions, Case(), cases, (), Case(), plans.Effort())  # type: ignore[arg-type]
    plans.save(folder, plans.Plan(asked, cases=cases))


def states(page: str) -> dict[str, str]:
    """The word beside each question in the contents."""
    nav = page[page.index('<nav class="contents"') : page.index("</nav>")]
    found = re.findall(r'<a href="#(\w+)">\w+</a>(?: <small>([^<]*)</small>)?</li>', nav)
    return {key: word for key, word in found if key in ("updates", "training", "split", "defenses")}


def section(page: str, question: str) -> str:
    found = re.search(rf'<section class="question[^"]*" id="{question}".*?</section>', page, flags=re.S)
    assert found
    return found[0]


def test_without_a_whole_audit_the_rest_was_not_asked(tmp_path: Path, one: Record):
    append(tmp_path, one)
    page = render(tmp_path)
    assert states(page) == {"updates": "", "training": "not asked", "split": "not asked", "defenses": "not asked"}
    assert "so nothing is known about it" in section(page, "split")


def test_refused_and_not_reached(tmp_path: Path, one: Record):
    append(tmp_path, one)
    plan(tmp_path, "updates", "training", "defenses")
    answers.append(tmp_path, Answer("updates", "answered"))
    answers.append(tmp_path, Answer("training", "refused", "too few <images> to train on"))
    page = render(tmp_path)
    assert states(page) == {"updates": "", "training": "no result", "split": "not asked", "defenses": "not reached"}
    assert "too few &lt;images&gt; to train on" in section(page, "training")
    assert "stopped before it reached this question" in section(page, "defenses")


def test_what_failed_in_the_middle_shows_what_there_is_and_says_so(tmp_path: Path, one: Record):
    append(tmp_path, one)
    plan(tmp_path, "updates")
    answers.append(tmp_path, Answer("updates", "failed", "RuntimeError: boom"))
    page = render(tmp_path)
    assert states(page)["updates"] == "not finished"
    assert page.count("It ended early: RuntimeError: boom.") == 2  # at the top and in the section
    assert 'id="case-1"' in page


def test_a_damaged_plan_is_said(tmp_path: Path, one: Record):
    append(tmp_path, one)
    (tmp_path / plans.FILE).write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        render(tmp_path)


def test_the_page_of_a_stopped_run_says_what_of_its_plan_was_not_done(tmp_path: Path, one: Record):
    append(tmp_path, one)
    plan(tmp_path, "updates", cases=(Case(),))
    page = render(tmp_path)
    said = "The run was stopped: 1 of 1 planned set-up was not attacked."
    assert states(page)["updates"] == "not finished"
    assert page.count(said) == 2  # at the top and in the section
    answers.append(tmp_path, Answer("updates", "answered"))
    assert said not in render(tmp_path)


def test_a_training_that_did_not_finish(tmp_path: Path, monitored: Callable[..., MonitorRun]):
    for how, word in (("finished", ""), ("interrupted", "not finished")):
        folder = tmp_path / how
        folder.mkdir()
        store_monitored(folder, replace(monitored(reports=2), end={"how": how, "step": 50}))
        assert states(render(folder))["training"] == word


def test_every_state_of_a_statement_has_its_word(tmp_path: Path, one: Record):
    append(tmp_path, replace(one, status="refused", verdict=None, reason="not shared: x"))
    assert states(render(tmp_path))["updates"] == "no result"
    assert [s.state for s in statements(read_findings(tmp_path))] == ["no_result", *["not_asked"] * 3]
