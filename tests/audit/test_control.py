"""Positive controls: run where a negative rests on them, once, and decisive."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from leakgauge import testing
from leakgauge.attacks import dlg, inverting_gradients, linear
from leakgauge.audit import control as module
from leakgauge.audit import records
from leakgauge.audit.case import Case
from leakgauge.audit.cause import Cause
from leakgauge.audit.control import GIVEN, Control, Controls, NearStart, control, near_starts
from leakgauge.audit.evaluate import evaluate
from leakgauge.audit.run import run_all
from leakgauge.audit.verdict import Outcome
from leakgauge.channels import Gradient
from leakgauge.core import Observation, Victim, share
from leakgauge.defenses import GaussianNoise


def observed(name: str = "cnn") -> tuple[Victim, Observation, Tensor, Tensor]:
    victim, x, y = testing.tiny_case(name)
    return victim, share(victim, Gradient(), x, y), x, y


def test_a_working_attack_passes_and_a_broken_one_fails() -> None:
    victim, seen, x, y = observed()
    works = control(inverting_gradients(steps=150, tv=0.01), victim, seen, x, y)
    broken = control(inverting_gradients(steps=150, tv=0.01, lr=1e-6), victim, seen, x, y)
    assert works.passed
    assert (works.ssim or 0) > (works.null_ssim or 0) + 0.36
    assert not broken.passed


def test_an_attack_that_does_not_apply_there_has_failed() -> None:
    victim, seen, x, y = observed()
    found = control(linear(), victim, seen, x, y)
    assert not found.passed
    assert found.refused


def test_the_weights_of_a_control_are_not_the_audited_ones() -> None:
    victim, seen, x, y = observed()
    met: list[Victim] = []

    class Spy:
        def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> object:
            met.append(victim)
            return inverting_gradients(steps=1)(victim, seen, seed=seed)

    control(Spy(), replace(victim, mode="train"), seen, x, y)  # type: ignore[arg-type]
    before, after = victim.parameters(), met[0].parameters()
    assert met[0].mode == "eval"
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_starts_near_the_truth_say_how_far_a_search_reaches() -> None:
    victim, seen, x, y = observed()
    near = near_starts(inverting_gradients(steps=100, tv=0.0), victim, seen, x, y)
    assert [one.given for one in near] == list(GIVEN)
    assert [one.start for one in near] == sorted((one.start for one in near), reverse=True)
    stuck = near_starts(inverting_gradients(steps=100, tv=0.0, lr=1e-7), victim, seen, x, y)
    assert not any(one.found for one in stuck)
    assert near_starts(linear(), victim, seen, x, y) == ()


@pytest.mark.parametrize(
    ("found", "reach"),
    [((True, True, False, True), 0.7), ((False, True, True, True), None), ((True, True, True, True), 0.3)],
)
def test_a_search_reaches_as_far_as_it_finds_without_a_gap(found: tuple[bool, ...], reach: float | None) -> None:
    starts = tuple(NearStart(given, 0.1, 0.9, ok) for given, ok in zip((0.9, 0.7, 0.5, 0.3), found, strict=True))
    assert Control("k", "a", True, starts=starts).reach == reach


def test_a_control_runs_once_and_starts_only_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, seen, x, y = observed()
    runs: list[str] = []
    monkeypatch.setattr(module, "control", lambda *_, **__: runs.append("control") or Control("", "a", True))
    monkeypatch.setattr(
        module, "near_starts", lambda *_, **__: runs.append("starts") or (NearStart(0.9, 0.1, 0.9, True),)
    )
    ask = partial(Controls(), inverting_gradients(steps=5), victim, seen, x, y)
    assert not ask(starts=False).starts
    assert ask(starts=True).starts
    assert not ask(starts=False).starts
    assert runs == ["control", "starts"]
    Controls([ask(starts=True)])(inverting_gradients(steps=5), victim, seen, x, y, starts=True)
    Controls(starts=False)(inverting_gradients(steps=6), victim, seen, x, y, starts=True)
    assert runs == ["control", "starts", "control"]


def test_a_failed_control_takes_the_evidence_from_a_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, x, y = testing.tiny_case("cnn")
    drowned = [GaussianNoise(relative=100.0)]
    judged = partial(evaluate, victim, Gradient(), x, y, defenses=drowned, seed=1)
    earned = judged(attack=dlg(steps=30))
    assert (earned.outcome, earned.verdict.cause) == (Outcome.INFEASIBLE, Cause.INFORMATION)
    assert earned.control is not None
    assert earned.control.passed
    monkeypatch.setattr(module, "control", lambda *_, **__: Control("", "a", False))
    open_ = judged(attack=dlg(steps=30))
    assert (open_.outcome, open_.verdict.cause) == (Outcome.INCONCLUSIVE, Cause.CONTROL)


def test_records_keep_test_and_control(tmp_path: Path, load, quick) -> None:
    case: Case = quick(defenses=("gaussian_noise:relative=100.0",), attack="dlg", options={"steps": 30})
    (without,) = run_all([case], load=load, folder=tmp_path / "without", controls="none")
    assert without.test is not None
    assert without.control is None
    assert without.outcome is Outcome.INCONCLUSIVE
    (kept,) = run_all([case], load=load, folder=tmp_path / "with")
    assert kept.control is not None
    assert kept.test is not None
    assert records.read(tmp_path / "with") == [kept]
