"""The questions one after another: planned, refused, failed, resumed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.audit import planner as planning
from leakgauge.audit import records, whole
from leakgauge.audit.findings import read_findings
from leakgauge.audit.plan import Plan
from leakgauge.audit.planner import Planner
from leakgauge.audit.questions import answers, split_records, training
from leakgauge.audit.request import Effort, Request
from leakgauge.audit.session import Setup
from leakgauge.audit.timing import Cost
from leakgauge.audit.wording import statements
from leakgauge.errors import BadInput, CannotWrite


@pytest.fixture
def ask(quick):
    def make(*questions, **changes):
        case = quick()
        fields = {"main": case, "cases": (case,), "ladder": (), "split": case, "effort": Effort(3, 16, 1), **changes}
        return Request(questions, **fields)

    return make


@pytest.fixture
def plenty(victim_of, batch_of):
    """Loads forty images: enough for a training, too few for a scan."""
    images, _ = batch_of(40)

    def find(case):
        return Setup(victim_of(mode=case.mode, norm=False), images, torch.arange(40) % 4)

    return find


class Told:
    def __init__(self):
        self.said = []

    def started(self, question, parts):
        self.said.append((question, parts))

    def moved(self, question, done, said):
        self.said.append((question, done))

    def ended(self, answer):
        self.said.append((answer.question, answer.status))


def test_steps_decided_beforehand_limit_the_attacks_on_updates(ask, quick, load, tmp_path):
    """Where a case says its own steps, those hold."""
    open_, own = replace(quick(), options={}, name=""), replace(quick(), options={"steps": 5}, name="")
    changed = replace(open_, batch_size=2, name="")
    request = ask("updates", main=open_, cases=(open_, own), ladder=(changed,), effort=Effort(steps=2))
    made = Planner(request, load=load, folder=tmp_path, began=0.0).plan()
    assert [case.options["steps"] for case in (*made.cases, *made.ladder)] == [2, 5, 2]


def test_a_question_that_cannot_be_answered_is_refused_and_the_others_go_on(ask, plenty, tmp_path):
    plan = Planner(ask("updates", "training", "split"), load=plenty, folder=tmp_path, began=0.0).plan()
    assert list(plan.refusals) == ["split"]
    assert "at least 50 images" in plan.refusals["split"]
    told = Told()
    found = whole.carry_out(plan, folder=tmp_path, load=plenty, watcher=told)[1]
    assert {q: a.status for q, a in found.items()} == {
        "updates": "answered",
        "training": "answered",
        "split": "refused",
    }
    assert found["split"].reason == plan.refusals["split"]
    assert answers.read(tmp_path) == found
    assert told.said[0] == ("updates", 1)
    assert [pair for pair in told.said if isinstance(pair[1], str)] == [(q, a.status) for q, a in found.items()]
    assert max(done for q, done in told.said[1:] if q == "training" and not isinstance(done, str)) == 16
    before = (tmp_path / answers.FILE).read_bytes(), (tmp_path / training.FILE).read_bytes()
    assert whole.carry_out(plan, folder=tmp_path, load=plenty)[1] == found  # nothing is left to do
    assert ((tmp_path / answers.FILE).read_bytes(), (tmp_path / training.FILE).read_bytes()) == before


def test_where_nothing_can_be_answered_the_user_is_told(ask, plenty, load, tmp_path):
    with pytest.raises(BadInput, match="at least 50 images"):
        Planner(ask("split"), load=plenty, folder=tmp_path, began=0.0).plan()
    with pytest.raises(BadInput, match="at least 32 images"):
        Planner(ask("training", "split"), load=load, folder=tmp_path, began=0.0).plan()


def test_a_crash_is_a_failure_and_is_tried_again(ask, plenty, tmp_path, monkeypatch):
    plan = Planner(ask("updates", "training"), load=plenty, folder=tmp_path, began=0.0).plan()

    def crash(*args, **options):
        raise RuntimeError("boom")

    with monkeypatch.context() as broken:
        broken.setattr(whole, "train", crash)
        found = whole.carry_out(plan, folder=tmp_path, load=plenty)[1]
    assert found["training"].status == "failed"
    assert found["training"].reason.startswith("RuntimeError: boom (test_whole.py:")
    assert [r.status for r in records.read(tmp_path)] == ["done"]
    assert whole.carry_out(plan, folder=tmp_path, load=plenty)[1]["training"].status == "answered"
    assert answers.read(tmp_path)["training"].status == "answered"


def test_a_full_disk_ends_the_run(ask, plenty, tmp_path, monkeypatch):
    plan = Planner(ask("training"), load=plenty, folder=tmp_path, began=0.0).plan()

    def full(*args, **options):
        raise CannotWrite("no space")

    monkeypatch.setattr(whole, "train", full)
    with pytest.raises(OSError, match="no space"):
        whole.carry_out(plan, folder=tmp_path, load=plenty)
    assert answers.read(tmp_path) == {}


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when a trial says so."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(planning, "time", made)
    return made


def test_the_time_that_planning_took_is_counted(ask, plenty, tmp_path, monkeypatch, clock, quick):
    """100 s, of which trials take 8: training is promised its share of what is left, updates get the rest."""

    def training_trial(*args, **options):
        clock.now += 3.0
        return planning_cost

    def update_trials(cases, *, load, until):
        clock.now += 5.0
        return [Cost(1.0, 0.01) for _ in cases]

    planning_cost = Cost(0.0, 0.1)
    monkeypatch.setattr(planning, "trial_cost", training_trial)
    monkeypatch.setattr(planning, "costs", update_trials)
    changed = quick(batch_size=2)
    request = ask("updates", "training", effort=Effort(), budget=100.0, ladder=(changed,))
    plan = Planner(request, load=plenty, folder=tmp_path, began=0.0).plan()
    share = (100 - 4 - 5 - 3) * 0.10 / 0.55
    assert plan.training is not None
    assert plan.training.steps == 160  # share / 0.1, in two digits
    assert share == pytest.approx(16.0, abs=0.1)
    assert plan.controls == "plain"  # six more searches would take most of the time
    assert plan.cases[0].options["steps"] == 980  # (0.45 * (100 - 4 - 8 - 16) - 3) / 0.03, in two digits
    assert plan.ladder[0].options["steps"] == 980
    assert sum(plan.estimates.values()) + plan.planning == pytest.approx(96.0, abs=0.1)


def test_changes_are_left_out_where_there_is_no_time(ask, plenty, tmp_path, monkeypatch, clock, quick):
    monkeypatch.setattr(planning, "costs", lambda cases, *, load, until: [Cost(0.0, 0.1) for _ in cases])
    request = ask("updates", effort=Effort(), budget=7.0, ladder=(quick(batch_size=2), quick(mode="train")))
    plan = Planner(request, load=plenty, folder=tmp_path, began=0.0).plan()
    assert (plan.cases[0].options["steps"], plan.ladder) == (12, ())  # a quarter of the time: a first look
    assert plan.notes == (
        "single changes of the set-up were left out: they take at least 1 min 36 s more",
        "there is time for 12 steps on eval mode, batch 1, inverting_gradients, and a negative counts only after 480 (48 s): "
        "give more time",
    )
    fixed = replace(request, effort=Effort(steps=9))
    plan = Planner(fixed, load=plenty, folder=tmp_path, began=0.0).plan()
    assert [case.options["steps"] for case in (*plan.cases, *plan.ladder)] == [3, 3, 3]  # as they were asked for


def test_the_command_of_a_scan_names_its_effort_also_where_the_audit_chose_it(ask, victim_of, batch_of, tmp_path):
    """Alone, the same command would plan its effort by a time budget, and come to other numbers."""
    images, _ = batch_of(80)

    def load(case):
        return Setup(victim_of(mode=case.mode, norm=False), images, torch.arange(80) % 4)

    Planner(ask("split", effort=Effort()), load=load, folder=tmp_path, began=0.0).plan()
    plan = split_records.read_plan(tmp_path)
    assert plan.command.endswith(f" --epochs {plan.epochs}")


@pytest.fixture
def trials(monkeypatch, clock):
    """Trials that take no time; a step of every set-up takes a tenth of a second for each image."""
    monkeypatch.setattr(
        planning, "costs", lambda cases, *, load, until: [Cost(0.5, 0.1 * case.batch_size) for case in cases]
    )
    monkeypatch.setattr(planning, "trial_cost", lambda *args, **options: Cost(0.0, 0.01))


def test_no_set_up_gets_fewer_steps_than_a_negative_needs(ask, plenty, tmp_path, trials, quick):
    """Strongest needs 200 steps to fail with evidence: 20.5 s for one image, 80.5 s for four."""
    small, large = quick(attack="strongest", options={}), quick(attack="strongest", options={}, batch_size=4)
    request = replace(ask("updates", effort=Effort(), budget=42.0), main=small, cases=(small, large))
    plan = Planner(request, load=plenty, folder=tmp_path, began=0.0).plan()
    assert [case.options["steps"] for case in plan.cases] == [200]  # and as many for its control
    assert plan.notes[0] == "eval mode, batch 4, strongest was left out: it takes at least 1 min 20 s"
    assert plan.notes[1].startswith("starts near the truth were left out")
    both = Planner(replace(request, budget=150.0), load=plenty, folder=tmp_path, began=0.0).plan()
    assert [case.options["steps"] for case in both.cases] == [210, 210]
    assert both.controls == "plain"
    short = Planner(replace(request, budget=30.0), load=plenty, folder=tmp_path, began=0.0).plan()
    assert short.controls == "none"
    assert any("no negative is evidence" in note for note in short.notes)


def test_a_cheap_set_up_is_judged_where_the_one_that_counts_cannot_be(ask, plenty, tmp_path, trials, quick):
    """Of 47 s a verdict on one image takes 20.5 s; one on four images would take 80.5 s, and gets a first look in what is left."""
    small, large = quick(attack="strongest", options={}), quick(attack="strongest", options={}, batch_size=4)
    request = replace(ask("updates", effort=Effort(), budget=50.0), main=large, cases=(large, small))
    plan = Planner(request, load=plenty, folder=tmp_path, began=0.0).plan()
    steps = [(case.batch_size, case.options["steps"]) for case in plan.cases]
    assert steps == [(1, 200), (4, 15)]  # (0.25 * (47 - 20.5) - 0.5) / 0.4 = 15.3
    assert [note.partition(" on ")[0] for note in plan.notes] == ["there is time for 15 steps"]
    assert sum(plan.estimates.values()) <= 48.0
    plan = Planner(replace(request, budget=30.0), load=plenty, folder=tmp_path, began=0.0).plan()
    assert [case.batch_size for case in plan.cases] == [
        4
    ]  # a verdict on one image would take more than half of the time


def test_what_a_verdict_needs_comes_before_training_and_defenses(ask, plenty, tmp_path, trials, quick):
    own = quick(attack="strongest", options={}, batch_size=4)
    request = replace(ask("updates", "training", "defenses", effort=Effort(), budget=90.0), main=own, cases=(own,))
    plan = Planner(request, load=plenty, folder=tmp_path, began=0.0).plan()
    assert plan.cases[0].options["steps"] >= 200
    assert plan.refusals.keys() == {"training", "defenses"}
    assert plan.refusals["defenses"] == (
        "left out: it takes at least 6 min 42 s, and of the 1 min 30 s there are 5.7 s for it; give more time or ask it alone "
        "(--only defenses)"
    )
    assert sum(plan.estimates.values()) <= 90.0


def test_nothing_begins_after_the_time_and_what_is_left_out_is_named(ask, plenty, tmp_path, quick):
    two = (quick(), quick(batch_size=2))
    plan = Plan(replace(ask("updates", "training"), cases=two), cases=two)
    said = whole.carry_out(plan, folder=tmp_path, load=plenty, until=0.0)[1]
    assert (
        said["updates"].reason
        == "the time was over: 1 set-up of 2 was not attacked (eval mode, batch 2, inverting_gradients)"
    )
    assert said["training"].reason.startswith("the time was over; it takes about")
    assert len(records.read(tmp_path)) == 1
    (one,) = [one for one in statements(read_findings(tmp_path)) if one.question == "updates"]
    assert (one.state, "1 set-up of 2 was not attacked" in one.text) == ("unfinished", True)
