"""A budget is kept while an audit runs: against a clock that is known, with attacks that take as long as they say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from leakgauge.audit import pace as pacing
from leakgauge.audit import plan as plans
from leakgauge.audit import planner as planning
from leakgauge.audit import records
from leakgauge.audit.case import enough_steps
from leakgauge.audit.pace import GROWTH, OVER, Pace, Stopwatch, TooSlow
from leakgauge.audit.planner import Planner, ends
from leakgauge.audit.questions.updates import same_work
from leakgauge.audit.request import Effort, Request
from leakgauge.audit.run import run_case
from leakgauge.audit.session import Setup
from leakgauge.audit.timing import Cost
from leakgauge.audit.verdict import Outcome
from leakgauge.inversion import progress

BUDGET = 1000.0


@dataclass
class World:
    """Where time passes only by steps. Attacks take ``fixed`` seconds and ``step`` a step and image, and end as ``outcome`` says."""

    fixed: float = 2.0
    step: float = 0.1
    outcome: object = lambda case: Outcome.INCONCLUSIVE
    now: float = 0.0
    ran: list = field(default_factory=list)
    made: object = None

    def perf_counter(self):
        return self.now

    def attack(self, case, controls):
        self.now += self.fixed
        steps = case.options["steps"]
        for done in range(steps):
            self.now += self.step * case.batch_size
            progress.report(done + 1, steps)
        self.ran.append((case.batch_size, steps))
        verdict = replace(self.made.verdict, outcome=self.outcome(case))
        nothing = dict.fromkeys(("scores", "null", "baseline", "start"))
        record = replace(self.made, key=case.key(), case=case, verdict=verdict, pictures={}, progress=(), **nothing)
        records.append(self.folder, record)
        return record


@pytest.fixture
def world(monkeypatch, quick, load, tmp_path):
    made = World()
    made.folder = tmp_path
    made.made = run_case(quick(), load=load, folder=tmp_path)
    for module in (pacing, planning):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def begun(world, quick, monkeypatch, victim_of, batch_of, tmp_path):
    """An audit with a budget of 1,000 s whose trials said that a step takes 0.1 s for each image."""
    images, _ = batch_of(40)

    def find(case):
        return Setup(victim_of(mode=case.mode, norm=False), images, torch.arange(40) % 4)

    def begin(*cases, ladder=(), said=0.1, questions=("updates",)):
        monkeypatch.setattr(
            planning, "costs", lambda cases, *, load, until: [Cost(2.0, said * case.batch_size) for case in cases]
        )
        request = Request(questions, cases[0], tuple(cases), tuple(ladder), cases[0], Effort(), BUDGET)
        planner = Planner(request, find, tmp_path, 0.0)
        plan = planner.plan()
        return Pace(planner, tmp_path, world.attack), plan

    return begin


def never(plan, question):
    raise AssertionError


def test_a_first_look_leaves_time_and_inconclusive_set_ups_get_it(begun, world, quick, tmp_path):
    small, large = (quick(attack="strongest", options={}, batch_size=size) for size in (1, 4))
    pace, plan = begun(small, large)
    plan = pace.first_look(plan, plan.every_case)
    looked = world.now
    assert looked < 0.5 * BUDGET
    plan = pace.spend(plan, never)
    assert 0.9 * BUDGET < world.now <= BUDGET
    first = world.ran[0][1]
    assert all(steps >= GROWTH * first for _, steps in world.ran[2:])
    assert [size for size, _ in world.ran[2:4]] == [1, 4]  # the one that counts, then those that take longest
    kept = records.read(tmp_path)
    assert {(r.case.batch_size, r.case.options["steps"]) for r in kept} == set(world.ran[2:4])
    assert [case.key() for case in plan.every_case] == [record.key for record in kept]
    assert plans.read(tmp_path) == plan


@pytest.mark.parametrize("slower", [0.3, 0.6, 1.0, 1.5, 3.0])
def test_the_budget_holds_whatever_the_trials_said(begun, world, quick, slower):
    """Also where another program takes most of the machine."""
    world.step = 0.1 * slower
    pace, plan = begun(quick(attack="strongest", options={}), quick(attack="strongest", options={}, batch_size=4))
    pace.spend(pace.first_look(plan, plan.every_case), never)
    assert 0.8 * BUDGET < world.now < 1.2 * BUDGET


def test_a_machine_that_becomes_slow_in_the_middle(begun, world, quick, monkeypatch, tmp_path):
    """A second look under way is given up; the first one stays."""
    only = quick(attack="strongest", options={})
    pace, plan = begun(only)
    plan = pace.first_look(plan, plan.every_case)
    (before,) = records.read(tmp_path)
    world.step *= 10
    after = pace.spend(plan, never)
    assert world.now < (1 + OVER) * BUDGET
    assert [record.key for record in records.read(tmp_path)] == [before.key]
    assert after == plan == plans.read(tmp_path)


def test_the_set_up_that_counts_is_attacked_with_what_there_is(begun, world, quick, tmp_path):
    """A thousand times slower than a verdict needs."""
    world.step = 40.0
    pace, plan = begun(quick(attack="strongest", options={}), said=40.0)
    assert plan.cases[0].options["steps"] < enough_steps(plan.cases[0])
    plan = pace.spend(pace.first_look(plan, plan.every_case), never)
    (record,) = records.read(tmp_path)
    assert record.case.options["steps"] == plan.cases[0].options["steps"] > world.ran[0][1]
    assert 0.8 * BUDGET < world.now < 1.2 * BUDGET
    assert f"there is time for {record.case.options['steps']} steps" in pace.planner.notes(plan)[0]


def test_what_shows_more_is_kept(begun, world, quick, tmp_path):
    """A leak that fewer steps showed was shown."""
    world.outcome = lambda case: Outcome.PARTIAL if len(world.ran) == 1 else Outcome.INCONCLUSIVE
    pace, plan = begun(quick(attack="strongest", options={}))
    after = pace.spend(pace.first_look(plan, plan.every_case), never)
    assert len(world.ran) > 1
    (record,) = records.read(tmp_path)
    assert (record.outcome, record.case.options["steps"]) == (Outcome.PARTIAL, world.ran[0][1])
    assert after.cases[0].key() == record.key


def test_a_negative_that_is_evidence_takes_the_place_of_one_that_is_not(begun, world, quick, tmp_path):
    world.outcome = lambda case: Outcome.INCONCLUSIVE if len(world.ran) == 1 else Outcome.INFEASIBLE
    pace, plan = begun(quick(attack="strongest", options={}))
    pace.spend(pace.first_look(plan, plan.every_case), never)
    assert [record.outcome for record in records.read(tmp_path)] == [Outcome.INFEASIBLE]


def test_what_was_left_out_gets_time_that_nobody_needs(begun, world, quick, tmp_path):
    """The trials said that a step takes twenty times as long as it does."""
    world.outcome = lambda case: Outcome.FEASIBLE
    main = quick(attack="strongest", options={})
    changed = [replace(main, name="", batch_size=size) for size in (2, 3)]
    pace, plan = begun(main, ladder=(main, *changed), said=2.0)
    assert plan.ladder == ()
    assert "single changes" in plan.notes[0]
    plan = pace.spend(pace.first_look(plan, plan.every_case), never)
    assert {same_work(case) for case in plan.ladder} == {same_work(case) for case in changed}
    assert not any("single changes" in note for note in pace.planner.notes(plan))
    assert len({record.case.options["steps"] for record in records.read(tmp_path)}) == 1


def test_where_nothing_can_be_gained_the_audit_ends_early(begun, world, quick):
    world.outcome = lambda case: Outcome.FEASIBLE
    pace, plan = begun(quick(attack="strongest", options={}))
    pace.spend(pace.first_look(plan, plan.every_case), never)
    assert len(world.ran) == 1


def test_a_watch_ends_a_search_as_soon_as_it_would_be_late(monkeypatch):
    clock = World()
    monkeypatch.setattr(pacing, "time", clock)
    watch = Stopwatch(steps=100, latest=50.0)

    def run(steps, each):
        for done in range(steps):
            clock.now += each
            watch(done + 1, steps)

    with pytest.raises(TooSlow) as slow:
        run(100, 1.0)
    assert slow.value.step == pytest.approx(1.0)
    assert clock.now == pytest.approx(3.0)  # two seconds of steps after the first
    clock.now, watch = 0.0, Stopwatch(steps=100, latest=50.0)
    run(100, 0.3)
    run(100, 0.3)  # what follows the search is not ended: it has been searched
    found = watch.cost(70.0)
    assert found is not None
    assert found.step == pytest.approx((60.0 - 0.3) / 100)
    assert found.fixed == pytest.approx(70.0 - 59.7)
    assert Stopwatch(steps=1, latest=1.0).cost(1.0) is None


@pytest.mark.parametrize("outcome", [Outcome.FEASIBLE, Outcome.INCONCLUSIVE])
def test_a_question_that_was_left_out_is_asked_in_the_end(outcome, begun, world, quick, monkeypatch, tmp_path):
    """A training step is taken to be as long as a replay, so training waits; it gets more time if set-ups need none."""
    monkeypatch.setattr(planning, "trial_cost", lambda *args, **options: Cost(0.0, 1.0))
    world.outcome = lambda case: outcome
    pace, plan = begun(quick(attack="strongest", options={}, batch_size=4), questions=("updates", "training"), said=0.9)
    assert plan.waiting.keys() == plan.refusals.keys() == {"training"}
    world.step = 0.1
    asked = []

    def ask(plan, question):
        asked.append((question, plan.training.steps, pace.left()))
        world.now += plan.training.steps
        return plan

    plan = pace.first_look(plan, plan.every_case)
    plan = pace.spend(replace(plan, waiting={"training": 60.0}), ask)
    ((question, steps, left),) = asked
    assert question == "training"
    assert steps == pytest.approx(left * (0.75 if outcome is Outcome.FEASIBLE else 0.1 / 0.55), rel=0.1)
    assert not plan.waiting
    assert not plan.refusals
    assert plans.read(tmp_path) == plan


def test_a_question_that_still_takes_too_long_stays_out(begun, world, quick, monkeypatch, tmp_path):
    monkeypatch.setattr(planning, "trial_cost", lambda *args, **options: Cost(0.0, 1e6))
    world.outcome = lambda case: Outcome.FEASIBLE
    pace, plan = begun(quick(attack="strongest", options={}), questions=("updates", "training"))
    plan = pace.first_look(plan, plan.every_case)
    plan = pace.spend(replace(plan, waiting={"training": 60.0}), never)
    assert plan.waiting["training"] > BUDGET
    assert plan.refusals["training"].startswith("left out: it takes at least")


def test_the_report_has_time_of_its_own():
    assert ends(10.0, 100.0) == pytest.approx(10 + 98 - 2)
