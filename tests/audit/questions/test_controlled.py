"""Controlled starts: the same image and noise for every model, and smoothing is not credited to the gradient."""

from __future__ import annotations

import pytest

from leakgauge.audit import embedded, run_all
from leakgauge.audit.records import Record


def ssim(record: Record) -> tuple[float, float, float]:
    """Of the start itself, after the null run (the priors alone) and after the attack."""
    start, null, attack = (one.mean("ssim") for one in (record.start, record.null, record.scores) if one is not None)
    return start, null, attack


def given(p: float) -> tuple[str, ...]:
    return ("size", "labels", f"noisy_copy:{p}")


def test_starts_are_the_same_for_every_model_and_without_steps_nothing_moves(quick, load, tmp_path):
    cases = [
        quick(model=model, attack="feasibility", reveal=given(p), options={"steps": 2, "lr": 1e-6})
        for model in "ab"
        for p in (0.0, 0.5, 1.0)
    ]
    rows = list(map(ssim, run_all(cases, load=load, folder=tmp_path)))
    for three in (rows[:3], rows[3:]):
        assert three[0][0] == pytest.approx(1)  # nothing replaced
        assert three[0][0] > three[1][0] > three[2][0]
    assert rows[0][0] == rows[3][0]  # the same image and noise for both
    for start, null, attack in rows:  # with steps of a millionth nothing moves: the null run ends where the attack ends
        assert null == pytest.approx(start, abs=1e-3)
        assert attack == pytest.approx(null, abs=1e-3)


def test_the_gradient_gains_on_smoothing_on_the_embedded_cnn(quick, tmp_path):
    options = {"steps": 80, "statistics": 0.0}
    case = quick(model="cnn", attack="feasibility", data="fashion", options=options, reveal=given(0.5))
    start, null, attack = ssim(run_all([case], load=embedded, folder=tmp_path)[0])
    assert attack > start + 0.1
    assert attack > null + 0.1
