"""What is written into plan.json comes back, also where the plan was not made yet, and in its older form."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from leakgauge.audit import plan
from leakgauge.audit.case import Case
from leakgauge.audit.plan import Plan
from leakgauge.audit.questions.defense_records import Trial
from leakgauge.audit.questions.training import TrainingPlan
from leakgauge.audit.questions.updates import DISHONEST, ladder
from leakgauge.audit.request import Effort, Request, ask, default_cases, variants
from leakgauge.audit.session import Setup
from leakgauge.core import Victim
from leakgauge.errors import BadInput

MAIN = Case(classes=3, mode="train", batch_size=4, defenses=("prune:0.9",), reveal=("size", "labels"))
REQUEST = Request(
    ("updates", "split"), MAIN, tuple(default_cases()), tuple(ladder(MAIN, images=10)), replace(MAIN, model="vgg"),
    Effort(epochs=3), budget=60.0, command="leakgauge audit", nominal={"updates": 3.0},
)  # fmt: skip


def test_a_request_comes_back(tmp_path):
    plan.save(tmp_path, REQUEST)
    assert plan.read(tmp_path) == REQUEST
    assert [p.name for p in tmp_path.iterdir()] == [plan.FILE]


def test_a_plan_comes_back(tmp_path):
    made = Plan(
        REQUEST, cases=REQUEST.cases, ladder=REQUEST.ladder, training=TrainingPlan(MAIN, 10, 2, 4, "x"), epochs=3,
        trials=(Trial(MAIN, 5), Trial(replace(MAIN, defenses=()), 5)), refusals={"split": "no"}, estimates={"updates": 1.5},
        planning=2.0, notes=("a",),
    )  # fmt: skip
    plan.save(tmp_path, made)
    found = plan.read(tmp_path)
    assert isinstance(found, Plan)
    assert found == made
    assert [c.key() for c in found.every_case] == [c.key() for c in made.every_case]
    assert [t.key() for t in found.trials] == [t.key() for t in made.trials]


def test_a_list_of_cases_is_a_plan_of_updates(tmp_path):
    """What earlier versions wrote."""
    cases = [*default_cases(), MAIN]
    (tmp_path / plan.FILE).write_text(json.dumps([asdict(case) for case in cases]))
    found = plan.read(tmp_path)
    assert isinstance(found, Plan)
    assert found.questions == ("updates",)
    assert list(found.every_case) == cases
    assert [c.key() for c in found.cases] == [c.key() for c in cases]


def test_a_change_that_is_a_case_of_its_own_is_not_run_again():
    grid = variants(Case(), modes=("eval", "train"), batch_size=None, defenses=[])
    steps = ladder(grid[-1], images=100)
    every = Plan(REQUEST, cases=tuple(grid), ladder=tuple(steps)).every_case
    assert list(every[:4]) == grid
    assert (
        len({case.content_key() for case in every}) == len(every) == len(grid) + len(steps) - 3
    )  # itself, eval mode, batch of 1
    assert {case.content_key() for case in every} == {case.content_key() for case in (*grid, *steps)}


def test_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(BadInput, match="nothing to resume"):
        plan.read(tmp_path)


NO_CASE = json.dumps([{"defenses": [], "reveal": [], "batch_size": 0}]).encode()
OTHER = json.dumps({"format": 3, "request": {}}).encode()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"[1]", b'["a"]', b'{"a": 1}', b'[{"model": 1}]', b"\xff", b"3", NO_CASE, OTHER]
)
def test_a_damaged_plan(content, tmp_path):
    (tmp_path / plan.FILE).write_bytes(content)
    with pytest.raises(BadInput, match="cannot be read"):
        plan.read(tmp_path)


@pytest.mark.parametrize("effort", [{"steps": 0}, {"training": 0}, {"epochs": -1}])
def test_an_effort_that_is_none(effort):
    with pytest.raises(BadInput, match="must be at least"):
        Effort(**effort)


def test_the_default_shows_each_factor_once():
    cases = default_cases(seed=3)
    assert len(cases) == 8
    assert len({case.key() for case in cases}) == 8
    assert {case.model for case in cases} == {"cnn", "vit"}
    assert {case.mode for case in cases} == {"eval", "train"}
    assert {case.batch_size for case in cases} == {1, 4}
    assert any(case.defenses for case in cases)
    assert all(case.options["steps"] >= 300 for case in cases)
    assert all(case.seed == 3 and case.device == "cpu" for case in cases)
    assert all(case.device == "cuda" for case in default_cases(device="cuda"))


def test_variants_are_the_whole_grid():
    found = variants(Case(model="x.py:f"), modes=("eval", "train"), batch_size=None, defenses=["prune:0.9", "clip:1"])
    expected = set(itertools.product(("eval", "train"), (1, 4), ((), ("prune:0.9",), ("clip:1",))))
    assert {(c.mode, c.batch_size, c.defenses) for c in found} == expected
    assert len(found) == 12
    (only,) = variants(Case(), modes=["train"], batch_size=2, defenses=[])
    assert (only.mode, only.batch_size, only.name) == ("train", 2, "cnn, train mode, batch 2, strongest")


def test_variants_have_a_sample_for_every_client():
    found = variants(Case(channel="aggregate:clients=3"), modes=["eval"], batch_size=None, defenses=[])
    assert [c.batch_size for c in found] == [3, 4]
    found = variants(Case(channel="aggregate:clients=6"), modes=["eval"], batch_size=None, defenses=[])
    assert [c.batch_size for c in found] == [6]


@pytest.fixture
def load_with(victim_of, batch_of):
    """Loads twenty images and a tiny victim made with these options."""
    images, _ = batch_of(20)

    def make(**options):
        return lambda case: Setup(victim_of(mode=case.mode, **options), images, torch.arange(20) % 4)

    return make


def setups(request):
    """Without the malicious server, which is tried beside them."""
    return [(case.mode, case.batch_size) for case in request.cases if case.change is None]


@pytest.mark.parametrize("options", [{"norm": True}, {"norm": False, "dropout": 0.5}])
def test_modes_that_differ_are_both_attacked(options, quick, load_with):
    found = ask(quick(), load=load_with(**options), questions=("updates",))
    assert setups(found) == [("eval", 1), ("eval", 4), ("train", 1), ("train", 4)]
    assert "eval mode" in {case.change.name for case in found.ladder[1:]}


def test_modes_that_do_not_differ_are_one_case(quick, load_with):
    load = load_with(norm=False)  # its dropout drops nothing
    found = ask(quick(), load=load, questions=("updates",))
    assert setups(found) == [("train", 1), ("train", 4)]
    assert found.main.content_key() == found.cases[1].content_key()
    assert {case.mode for case in found.ladder} == {"train"}
    assert setups(ask(quick(), load=load, questions=("updates",), mode="eval")) == [("eval", 1), ("eval", 4)]
    own = [quick(mode="eval"), quick(mode="train")]
    assert ask(quick(), load=load, questions=("updates",), cases=own).cases[:-1] == tuple(own)  # as written


def test_a_server_that_does_not_keep_to_the_protocol_is_tried_beside_the_set_up_that_counts(quick, load_with):
    found = ask(quick(), load=load_with(), questions=("updates",), batch_size=2, mode="train")
    *_, server = found.cases
    assert (server.server, server.attack, server.mode, server.batch_size) == ("imprint", "imprint", "train", 2)
    assert server.change == DISHONEST  # so the gate does not judge it
    named = ask(
        quick(), load=load_with(), questions=("updates",), cases=[quick(server="imprint", attack="imprint", options={})]
    )
    assert [case.change for case in named.cases] == [None]  # it was asked for, and counts
    assert all(
        case.change != DISHONEST for case in ask(quick(), load=load_with(), questions=("updates",), changes=False).cases
    )


class Dims(nn.Sequential):
    """Asks for its mode itself, which no layer shows."""

    def forward(self, x):
        return super().forward(x if self.training else x / 2)


def test_a_model_that_asks_for_its_mode_itself_is_attacked_in_both(quick, load_with):
    setup = load_with(norm=False)(quick())
    other = replace(setup, victim=Victim(Dims(*setup.victim.model), setup.victim.space))
    assert not other.victim.depends_on_mode()
    found = ask(quick(), load=lambda case: other, questions=("updates",))
    assert len(setups(found)) == 4
    assert "eval mode" in {case.change.name for case in found.ladder[1:]}


def test_what_cannot_be_built_is_refused_before_anything_is_loaded(quick):
    def never(case):
        raise AssertionError

    with pytest.raises(BadInput, match="did you mean prune"):
        ask(quick(), load=never, questions=("updates",), defenses=["prun:0.9"])
    with pytest.raises(BadInput, match="at least 1, got 0"):
        ask(quick(), load=never, questions=("updates",), batch_size=0)
    assert len(ask(quick(), load=never, questions=("split",)).cases) == 4  # nothing of it is attacked


@pytest.mark.parametrize(
    ("effort", "questions", "open_"),
    [
        (Effort(), ["updates"], True),
        (Effort(steps=3), ["updates"], False),
        (Effort(steps=3), ["updates", "training"], True),
        (Effort(steps=3), ["defenses"], False),
        (Effort(training=3), ["defenses", "training"], False),
        (Effort(3, 3), ["split"], True),
        (Effort(3, 3, 0), ["updates", "training", "split", "defenses"], False),
    ],
)
def test_effort_that_a_time_must_decide(effort, questions, open_):
    assert effort.leaves_open(questions) is open_
