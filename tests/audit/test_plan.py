"""The eight cases, a user's variants, and durations."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit import plan
from leakgauge.audit.case import Case
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
