"""What an audit will do: the eight cases, a user's variants, time turned into steps, and a plan that can be resumed."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit import plan
from leakgauge.audit.case import Case
from leakgauge.core import share
from leakgauge.errors import BadInput


def test_the_default_shows_each_factor_once():
    cases = plan.default_cases(seed=3)
    assert len(cases) == 8
    assert len({case.key() for case in cases}) == 8
    assert {case.model for case in cases} == {"cnn", "vit"}
    assert {case.mode for case in cases} == {"eval", "train"}
    assert {case.batch_size for case in cases} == {1, 4}
    assert any(case.defenses for case in cases)
    assert all(case.options["steps"] >= 300 for case in cases)
    assert all(case.seed == 3 and case.device == "cpu" for case in cases)
    assert all(case.device == "cuda" for case in plan.default_cases(device="cuda"))


def test_variants_are_the_whole_grid():
    found = plan.variants(Case(model="x.py:f"), mode=None, batch_size=None, defenses=["prune:0.9", "clip:1"])
    expected = set(itertools.product(("eval", "train"), (1, 4), ((), ("prune:0.9",), ("clip:1",))))
    assert {(c.mode, c.batch_size, c.defenses) for c in found} == expected
    assert len(found) == 12
    (only,) = plan.variants(Case(), mode="train", batch_size=2, defenses=[])
    assert (only.mode, only.batch_size, only.name) == ("train", 2, "cnn, train mode, batch 2, inverting_gradients")


def test_variants_refuse_before_anything_runs():
    with pytest.raises(BadInput, match="did you mean prune"):
        plan.variants(Case(), mode=None, batch_size=None, defenses=["prun:0.9"])
    with pytest.raises(BadInput, match="at least 1, got 0"):
        plan.variants(Case(), mode=None, batch_size=0, defenses=[])


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5m", 90), (" 2 h ", 7200), ("0.5s", 0.5)])
def test_durations(text, seconds):
    assert plan.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "0", "0.0h", "5d", "m", "1e3"])
def test_durations_that_are_none(text):
    with pytest.raises(BadInput, match="positive time such as 90s"):
        plan.seconds_of(text)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1e7))
def test_steps_are_rounded_down_to_two_digits(steps):
    found = plan.rounded_down(steps)
    assert found >= 50
    assert found <= max(50, steps)
    assert found > 0.9 * steps - 1
    assert len(str(found).rstrip("0")) <= 2


class Clock:
    """Time passes by ``cost`` for every step an attack takes."""

    def __init__(self, cost: float) -> None:
        self.now, self.cost = 0.0, cost

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.parametrize(("cost", "steps"), [(0.01, 540), (0.001, 5400), (0.04, 130), (1.0, 50)])
def test_a_budget_becomes_steps(cost, steps, quick, load, monkeypatch):
    """Two cases share 10.9 seconds: 5.45 seconds at the measured cost of a step, rounded down."""
    clock = Clock(cost)

    def attack_of(case):
        def attack(victim, seen, *, seed):
            clock.now += 0.3 + cost * case.options["steps"]  # a constant part that must not count

        return attack

    monkeypatch.setattr(plan, "time", clock)
    monkeypatch.setattr(Case, "build_attack", attack_of)
    found = plan.fit_budget([quick(), quick(batch_size=2)], 10.9, load=load)
    assert [case.options["steps"] for case in found] == [steps, steps]


def test_a_real_budget_is_kept(quick, load):
    """The first trial of a process is slow; taken for the cost of a run's beginning it once made steps look free."""
    (found,) = plan.fit_budget([quick(options={"tv": 0.0})], 0.5, load=load)
    assert found.options["tv"] == 0.0
    setup = load(found)
    seen = share(setup.victim, found.build_channel(), *setup.private(found))
    assert found.build_attack()(setup.victim, seen).seconds < 10


def test_cases_without_steps_stay_as_they_are(quick, load):
    closed, refused = quick(attack="linear", options={}), quick(attack="idlg", batch_size=2, options={})
    assert plan.fit_budget([closed, refused], 10, load=load) == [closed, refused]


def test_a_crash_in_the_trial_is_left_to_the_run(quick, load, monkeypatch):
    def crash(self):
        def attack(victim, seen, *, seed):
            raise RuntimeError("boom")

        return attack

    monkeypatch.setattr(Case, "build_attack", crash)
    assert plan.fit_budget([quick()], 10, load=load) == [quick()]


@pytest.mark.parametrize(
    ("change", "message"), [("shape", "does not take images of shape"), ("labels", "labels must lie in 0..3")]
)
def test_a_trial_refuses_what_does_not_fit(change, message, quick, load):
    from dataclasses import replace

    import torch

    from leakgauge.core import Pixels

    def broken(case):
        setup = load(case)
        if change == "labels":
            return replace(setup, labels=setup.labels + 4)
        object.__setattr__(setup.victim, "space", Pixels((1, 5, 5)))
        return replace(setup, images=torch.rand(20, 1, 5, 5))

    with pytest.raises(BadInput, match=message):
        plan.fit_budget([quick()], 10, load=broken)


def test_a_plan_comes_back(tmp_path):
    cases = [*plan.default_cases(), Case(classes=3, defenses=("prune:0.9",), reveal=("size", "labels"))]
    plan.save(tmp_path, cases)
    found = plan.read(tmp_path)
    assert found == cases
    assert [c.key() for c in found] == [c.key() for c in cases]
    assert [p.name for p in tmp_path.iterdir()] == [plan.FILE]


def test_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(BadInput, match="nothing to resume"):
        plan.read(tmp_path)


NO_CASE = json.dumps([{"defenses": [], "reveal": [], "batch_size": 0}]).encode()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'["a"]', b'{"a": 1}', b'[{"model": "cnn"}]', b"\xff", NO_CASE])
def test_a_damaged_plan(content, tmp_path):
    (tmp_path / plan.FILE).write_bytes(content)
    with pytest.raises(BadInput, match="damaged"):
        plan.read(tmp_path)
