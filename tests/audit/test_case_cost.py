"""What a case costs, against a clock that is known; and steps that fit into a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from leakgauge.audit import case_cost
from leakgauge.audit.case_cost import Cost
from leakgauge.audit.session import Setup
from leakgauge.core import Pixels
from leakgauge.errors import BadInput


@dataclass
class Clock:
    """A case takes ``fixed`` seconds and ``step`` for every step and image, the first of all ``cold`` more."""

    fixed: float
    step: float
    cold: float = 0.0
    status: str = "done"
    now: float = 0.0
    runs: int = 0

    def perf_counter(self) -> float:
        return self.now

    def run_case(self, case, *, load, folder):
        self.now += self.fixed + self.step * case.options["steps"] * case.batch_size + (0 if self.runs else self.cold)
        self.runs += 1
        return self

    def on(self, monkeypatch):
        monkeypatch.setattr(case_cost, "time", self)
        monkeypatch.setattr(case_cost, "run_case", self.run_case)
        return self


@pytest.mark.parametrize("step", [1e-4, 0.01, 2.0])
def test_the_cost_of_a_step_and_of_what_surrounds_it(step, quick, load, monkeypatch):
    Clock(0.3, step, cold=5.0).on(monkeypatch)
    one, four = case_cost.costs([quick(), quick(batch_size=4)], load=load)
    assert (one.fixed, one.step) == pytest.approx((0.3, step))
    assert (four.fixed, four.step) == pytest.approx((0.3, 4 * step))


def test_cases_that_differ_in_defenses_alone_are_tried_once(quick, load, monkeypatch):
    clock = Clock(0.3, 1.0).on(monkeypatch)
    found = case_cost.costs([quick(), quick(defenses=("prune:0.5",)), quick(first=3)], load=load)
    assert clock.runs == 3  # the warm-up, one step, and a few more
    assert found == [found[0]] * 3


def test_no_cost_where_the_attack_refuses_or_takes_no_steps(quick, load, monkeypatch):
    assert case_cost.costs([quick(attack="linear", options={})], load=load) == [None]
    Clock(0.3, 1.0, status="refused").on(monkeypatch)
    assert case_cost.costs([quick()], load=load) == [None]


def test_all_cases_get_the_same_steps_and_the_time_is_used(quick):
    found = [Cost(0.5, 0.01), None, Cost(1.5, 0.03)]
    steps = case_cost.affordable(found, 42.3)
    assert steps == 1000  # (42.3 - 2) / 0.04 = 1007.5, in tens
    assert case_cost.seconds_of(found, steps) == pytest.approx(42.0)
    assert case_cost.affordable(found, 1.0) == 50
    assert case_cost.affordable([None], 10.0) == 50
    assert case_cost.with_steps(quick(), 70).options["steps"] == 70
    closed = quick(attack="linear", options={})
    assert case_cost.with_steps(closed, 70) == closed


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
        case_cost.rehearse([quick()], load=broken)
    with pytest.raises(BadInput, match="needs images 18 to 21"):
        case_cost.rehearse([quick(first=18, batch_size=4)], load=load)


def test_a_rehearsal_leaves_refusals_and_crashes_to_the_run(quick, load, monkeypatch):
    met = []

    def crash(*args, **options):
        met.append(args)
        raise RuntimeError("boom")

    monkeypatch.setattr(Setup, "observation", crash)
    case_cost.rehearse([quick()], load=load)
    assert len(met) == 1
