"""Durations as people write them, and steps in round numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.audit import step_time
from leakgauge.errors import BadInput


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5m", 90), (" 2 h ", 7200), ("0.5s", 0.5)])
def test_durations(text, seconds):
    assert step_time.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "0", "0.0h", "5d", "m", "1e3"])
def test_durations_that_are_none(text):
    with pytest.raises(BadInput, match="positive time such as 90s"):
        step_time.seconds_of(text)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1e7))
def test_steps_are_rounded_down_to_two_digits(steps):
    found = step_time.rounded_down(steps)
    assert found >= 50
    assert found <= max(50, steps)
    assert found > 0.9 * steps - 1
    assert len(str(found).rstrip("0")) <= 2
