"""What is written into plan.json comes back, also where the plan was not made yet, and in its older form."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from leakgauge.audit import usual_cases, whole_plan
from leakgauge.audit.case import Case
from leakgauge.audit.changes import ladder
from leakgauge.audit.defend import Trial
from leakgauge.audit.training import TrainingPlan
from leakgauge.audit.whole_plan import Effort, Request, WholePlan
from leakgauge.errors import BadInput

MAIN = Case(classes=3, mode="train", batch_size=4, defenses=("prune:0.9",), reveal=("size", "labels"))
REQUEST = Request(
    ("updates", "split"), MAIN, tuple(usual_cases.default_cases()), tuple(ladder(MAIN, images=10)), replace(MAIN, model="vgg"),
    Effort(epochs=3), budget=60.0, command="leakgauge audit", nominal={"updates": 3.0},
)  # fmt: skip


def test_a_request_comes_back(tmp_path):
    whole_plan.save_request(tmp_path, REQUEST)
    assert whole_plan.read(tmp_path) == REQUEST
    assert [p.name for p in tmp_path.iterdir()] == [whole_plan.FILE]


def test_a_plan_comes_back(tmp_path):
    made = WholePlan(
        REQUEST, cases=REQUEST.cases, ladder=REQUEST.ladder, training=TrainingPlan(asdict(MAIN), 10, 2, 4, "x"), epochs=3,
        trials=(Trial(MAIN, 5), Trial(replace(MAIN, defenses=()), 5)), refusals={"split": "no"}, estimates={"updates": 1.5},
        planning=2.0, notes=("a",),
    )  # fmt: skip
    whole_plan.save(tmp_path, made)
    found = whole_plan.read(tmp_path)
    assert isinstance(found, WholePlan)
    assert found == replace(made, training=replace(made.training, case=json.loads(json.dumps(asdict(MAIN)))))
    assert [c.key() for c in found.every_case] == [c.key() for c in made.every_case]
    assert [t.key() for t in found.trials] == [t.key() for t in made.trials]


def test_a_list_of_cases_is_a_plan_of_updates(tmp_path):
    """What earlier versions wrote."""
    cases = [*usual_cases.default_cases(), MAIN]
    (tmp_path / whole_plan.FILE).write_text(json.dumps([asdict(case) for case in cases]))
    found = whole_plan.read(tmp_path)
    assert isinstance(found, WholePlan)
    assert found.questions == ("updates",)
    assert list(found.every_case) == cases
    assert [c.key() for c in found.cases] == [c.key() for c in cases]


def test_a_change_that_is_a_case_of_its_own_is_not_run_again():
    grid = usual_cases.variants(Case(), mode=None, batch_size=None, defenses=[])
    steps = ladder(grid[-1], images=100)
    every = WholePlan(REQUEST, cases=tuple(grid), ladder=tuple(steps)).every_case
    assert list(every[:4]) == grid
    assert (
        len({case.content_key() for case in every}) == len(every) == len(grid) + len(steps) - 3
    )  # itself, eval mode, batch of 1
    assert {case.content_key() for case in every} == {case.content_key() for case in (*grid, *steps)}


def test_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(BadInput, match="nothing to resume"):
        whole_plan.read(tmp_path)


NO_CASE = json.dumps([{"defenses": [], "reveal": [], "batch_size": 0}]).encode()
OTHER = json.dumps({"format": 3, "request": {}}).encode()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"[1]", b'["a"]', b'{"a": 1}', b'[{"model": "cnn"}]', b"\xff", b"3", NO_CASE, OTHER]
)
def test_a_damaged_plan(content, tmp_path):
    (tmp_path / whole_plan.FILE).write_bytes(content)
    with pytest.raises(BadInput, match="damaged"):
        whole_plan.read(tmp_path)


@pytest.mark.parametrize("effort", [{"steps": 0}, {"training": 0}, {"epochs": -1}])
def test_an_effort_that_is_none(effort):
    with pytest.raises(BadInput, match="must be at least"):
        Effort(**effort)
