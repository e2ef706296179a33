"""How long trials take, and which of them fit into a time."""

from __future__ import annotations

import pytest

from leakgauge.audit import defend, defense_budget
from leakgauge.audit.case import Case
from leakgauge.audit.defend import plan_trials
from leakgauge.audit.defense_budget import TrialCost, cost_of_trials, counted, fit_trials
from leakgauge.audit.defense_training import Training

CASE = Case(model="tiny", data="made", options={"tv": 0.01})


@pytest.mark.parametrize(("seconds", "trials"), [(60.0, 11), (300.0, 4), (3000.0, 11)])
def test_steps_within_a_time_take_that_time(seconds, trials):
    cost = TrialCost(attack_step=0.01, train_step=0.03, rest=0.5, once=1.0)
    steps, train_steps = cost.steps_within(seconds, trials)
    assert 20 <= train_steps <= 200
    taken = cost.seconds(trials, steps=steps, train_steps=train_steps)
    assert 0.8 * seconds < taken <= seconds
    assert taken == pytest.approx(1 + trials * (0.5 + 0.01 * steps + 0.03 * train_steps))


def test_steps_have_a_lower_end_and_go_where_they_are_taken():
    assert TrialCost(0.01, 0.03, 0.5, 1.0).steps_within(0.1, 5) == (50, 20)
    assert TrialCost(0.01, None, 0.0, 0.0).steps_within(100.0, 10) == (1000, 20)
    assert TrialCost(None, 1.0, 0.0, 0.0).steps_within(1000.0, 10) == (50, 100)


def test_short_runs_tell_what_a_trial_costs(setup, setup_of, load):
    cost = cost_of_trials(setup, CASE, load=load)
    assert cost.attack_step is not None
    assert cost.train_step is not None
    assert min(cost.attack_step, cost.train_step) > 0
    assert cost.rest > cost.evaluation > 0
    assert defense_budget._of_training(setup_of(20), Training(steps=60, batch=32, seed=0)) == (None, 0.0)


@pytest.mark.parametrize(
    ("cost", "defenses", "steps", "train_steps"),
    [
        (TrialCost(0.01, 0.01, 0.0, 0.0), 12, 280, 200),
        (TrialCost(0.06, 0.06, 0.0, 0.0), 12, 50, 31),  # thirteen trials, two of them thrice as long: 17 · 4.2 seconds
        (TrialCost(0.1, 0.1, 0.0, 0.0), 5, 57, 46),  # 119 seconds for all, so six are left, which count for eight
        (TrialCost(0.2, 0.2, 0.0, 0.0, 0.0), 5, 50, 0),  # even those would take 112 seconds
    ],
)
def test_what_does_not_fit_is_left_out(setup, load, monkeypatch, cost, defenses, steps, train_steps):
    monkeypatch.setattr(defense_budget, "cost_of_trials", lambda *_, **__: cost)
    trials = fit_trials(setup, CASE, 83.0, load=load)
    assert len(trials) == 1 + defenses
    assert trials[0].case.defenses == ()
    assert trials[-1].case.defenses == ("withhold:head",)
    assert {(t.case.options["steps"], t.train_steps) for t in trials} == {(steps, train_steps)}
    assert cost.seconds(counted(trials), steps=steps, train_steps=train_steps) <= 83
    own = fit_trials(setup, CASE, 0.1, load=load, specs=["prune:0.5", "prune:0.6"])
    assert [t.case.defenses for t in own] == [(), ("prune:0.5",), ("prune:0.6",)]


def test_a_large_model_is_asked_for_fewer_releases(setup, monkeypatch):
    monkeypatch.setattr(defend, "LARGE", 100)
    assert {t.releases for t in plan_trials(setup, CASE, steps=7, train_steps=5)} == {defend.FEW_RELEASES}
