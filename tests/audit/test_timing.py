"""What a case costs, against a clock that is known; durations as people write them; and what fits into a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit import timing
from leakgauge.audit.case import with_steps
from leakgauge.audit.planner import rehearse
from leakgauge.audit.questions.split import evenly, expected, places_within
from leakgauge.audit.session import Setup
from leakgauge.audit.timing import Cost, alike, costs, estimated, seconds_of
from leakgauge.core import Pixels
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import progress


@dataclass
class Clock:
    """A case takes ``fixed`` seconds and ``step`` for every step and image, the first of all ``cold`` more."""

    fixed: float
    step: float
    cold: float = 0.0
    status: str = "done"
    now: float = 0.0
    runs: int = 0
    steps: int = 0
    reports: bool = True

    def perf_counter(self) -> float:
        return self.now

    def attack_once(self, case, load):
        if self.status != "done":
            raise Inapplicable("not shared")
        self.now += self.fixed + (0 if self.runs else self.cold)
        self.runs += 1
        for done in range(case.options["steps"]):
            self.now += self.step * case.batch_size
            self.steps += 1
            if self.reports:
                progress.report(done + 1, case.options["steps"])

    def on(self, monkeypatch):
        monkeypatch.setattr(timing, "time", self)
        monkeypatch.setattr(timing, "attack_once", self.attack_once)
        monkeypatch.setattr(timing, "_scoring", lambda case, load: 0.0)
        monkeypatch.setattr(timing, "READING", 0)
        return self


@pytest.mark.parametrize("reports", [True, False])
@pytest.mark.parametrize("step", [1e-4, 0.01, 2.0])
def test_the_cost_of_a_step_and_of_what_surrounds_it(step, reports, quick, load, monkeypatch):
    Clock(0.3, step, cold=0.2, reports=reports).on(monkeypatch)
    if reports and step > 1:  # a slow one is run once, with what warms it up
        (one,) = costs([quick()], load=load)
        assert (one.fixed, one.step) == pytest.approx((0.5, step))
        return
    one, four = costs([quick(), quick(batch_size=4)], load=load)
    assert (one.fixed, one.step) == pytest.approx((0.3, step))
    assert (four.fixed, four.step) == pytest.approx((0.3, 4 * step))


def test_cases_that_differ_in_defenses_alone_are_tried_once(quick, load, monkeypatch):
    clock = Clock(0.3, 1.0).on(monkeypatch)
    found = costs([quick(), quick(defenses=("prune:0.5",)), quick(first=3)], load=load)
    assert (clock.runs, clock.steps) == (1, 2)  # one that warms up, and one that is timed
    assert found == [found[0]] * 3


def test_after_its_time_planning_estimates_from_what_it_tried(quick, load, monkeypatch):
    clock = Clock(0.3, 0.01).on(monkeypatch)
    monkeypatch.setattr(timing, "time", clock)
    one, four = costs([quick(), quick(batch_size=4, mode="train")], load=load, until=0.0)
    ran = clock.runs
    assert costs([quick()], load=load)  # the first is tried whatever the time
    assert clock.runs == 2 * ran
    assert (four.fixed, four.step) == pytest.approx((one.fixed, 4 * one.step))


def test_a_small_set_up_is_not_estimated_at_the_cost_of_a_large_one(quick):
    """One image against five local steps on 32: a fifth for the steps, and at least the square root for the batch."""
    large, small = quick(batch_size=32, local_steps=5), quick()
    found = estimated(small, [large], {alike(large): Cost(10.0, 4.0)})
    assert found.step == pytest.approx(4.0 / 5 / 32**0.5)
    assert found.fixed < 1
    found = estimated(large, [small], {alike(small): Cost(1.0, 0.1)})
    assert found == Cost(1.0, 0.1 * 160)


def test_the_cost_of_several_searches_is_told_from_one(quick, load, monkeypatch):
    Clock(0.3, 0.01).on(monkeypatch)
    (found,) = costs([quick(attack="strongest", options={})], load=load)
    assert (found.fixed, found.step) == pytest.approx((0.3 + 3 * 0.01, 0.01))


def test_no_cost_where_the_attack_refuses_or_takes_no_steps(quick, load, monkeypatch):
    (closed,) = costs([quick(attack="linear", options={})], load=load)
    assert closed.step == 0  # but its scores take a moment
    Clock(0.3, 1.0, status="refused").on(monkeypatch)
    assert costs([quick()], load=load) == [Cost()]


def test_all_cases_get_the_same_steps_and_the_time_is_used(quick):
    cost = sum([Cost(0.5, 0.01), Cost(), Cost(1.5, 0.03)], Cost())
    assert cost.affordable(42.3) == 1000  # (42.3 - 2) / 0.04 = 1007.5
    assert cost.seconds(1000) == pytest.approx(42.0)
    assert cost.affordable(1.0) == 50
    assert Cost().affordable(10.0) == 50
    assert (cost.affordable(0.0, fewest=60), cost.affordable(1e6, most=3000)) == (60, 3000)
    assert with_steps(quick(), 70).options["steps"] == 70
    closed = quick(attack="linear", options={})
    assert with_steps(closed, 70) == closed


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1e7))
def test_steps_are_rounded_down_to_two_digits(steps):
    found = Cost(step=1.0).affordable(steps)
    assert found >= 50
    assert found <= max(50, steps)
    assert found > 0.9 * steps - 1
    assert len(str(found).rstrip("0")) <= 2


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5m", 90), (" 2 h ", 7200), ("0.5s", 0.5)])
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "0", "0.0h", "5d", "m", "1e3"])
def test_durations_that_are_none(text):
    with pytest.raises(BadInput, match="positive time such as 90s"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("change", "message"), [("shape", "does not take images of shape"), ("labels", "labels must be in 0..3")]
)
def test_a_rehearsal_refuses_what_does_not_fit(change, message, quick, load):
    def broken(case):
        setup = load(case)
        if change == "labels":
            return replace(setup, labels=setup.labels + 4)
        object.__setattr__(setup.victim, "space", Pixels((1, 5, 5)))
        return replace(setup, images=torch.rand(20, 1, 5, 5))

    with pytest.raises(BadInput, match=message):
        rehearse([quick()], load=broken)
    with pytest.raises(BadInput, match="needs images 18 to 21"):
        rehearse([quick(first=18, batch_size=4)], load=load)


def test_a_rehearsal_leaves_refusals_and_crashes_to_the_run(quick, load, monkeypatch):
    met = []

    def crash(*args, **options):
        met.append(args)
        raise RuntimeError("boom")

    monkeypatch.setattr(Setup, "observation", crash)
    rehearse([quick()], load=load)
    assert len(met) == 1


@pytest.mark.parametrize(("count", "kept"), [(9, 2), (9, 4), (9, 9), (9, 20), (2, 2), (1, 1)])
def test_thinned_cuts_are_spread_evenly_between_the_ends(count, kept):
    found = sorted(evenly(count, kept))
    assert len(found) == min(count, kept)
    assert (found[0], found[-1]) == (0, count - 1)
    gaps = [b - a for a, b in pairwise(found)]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1


def test_costs_lie_on_lines_between_what_was_measured():
    measured = {0: 8.0, 4: 4.0, 8: 2.0}
    assert [expected(place, measured) for place in (0, 1, 4, 6, 8, 9)] == [8.0, 7.0, 4.0, 3.0, 2.0, 2.0]


def test_as_many_cuts_as_the_time_lasts_for():
    measured = dict.fromkeys((0, 4, 8), 10.0)
    assert places_within(9, measured, (0, 4, 8), 60.0) == list(range(9))
    assert places_within(9, measured, (0, 4, 8), 59.0) != list(range(9))
    assert places_within(9, measured, (0, 4, 8), 20.0) == [0, 2, 4, 6, 8]
    assert places_within(9, measured, (0, 4, 8), -1.0) == [0, 4, 8], "the ends and what is done always stay"
    assert places_within(2, {0: 1.0}, (), 0.0) == [0, 1]
    assert places_within(1, {0: 1.0}, (), 0.0) == [0]
