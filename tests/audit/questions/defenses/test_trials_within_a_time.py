"""How long trials take, and which of them fit into a time."""

from __future__ import annotations

import pytest

from leakgauge.audit.questions import defenses
from leakgauge.audit.questions.defenses import TrialCost, cost_of_trials, counted, fit_trials, plan_trials
from leakgauge.audit.timing import Cost
from tests.audit.questions.defenses.tiny import CASE


@pytest.mark.parametrize(("seconds", "trials"), [(60.0, 11), (300.0, 4), (3000.0, 11)])
def test_steps_within_a_time_take_that_time(seconds, trials):
    cost = TrialCost(Cost(0.3, 0.01), Cost(0.2, 0.03), once=1.0)
    steps, train_steps = cost.steps_within(seconds, trials)
    assert 20 <= train_steps <= 200
    taken = cost.seconds(trials, steps=steps, train_steps=train_steps)
    assert 0.8 * seconds < taken <= seconds
    assert taken == pytest.approx(1 + trials * (0.5 + 0.01 * steps + 0.03 * train_steps))


def test_steps_have_a_lower_end_and_go_where_they_are_taken():
    assert TrialCost(Cost(0.3, 0.01), Cost(0.2, 0.03), 1.0).steps_within(0.1, 5) == (50, 20)
    assert TrialCost(Cost(step=0.01), Cost()).steps_within(100.0, 10) == (1000, 20)
    assert TrialCost(Cost(), Cost(step=1.0)).steps_within(1000.0, 10) == (50, 100)


def test_short_runs_show_what_a_trial_costs(setup, setup_of, load):
    cost = cost_of_trials(setup, CASE, load=load)
    assert min(cost.attack.step, cost.training.step, cost.attack.fixed, cost.training.fixed, cost.once) > 0
    few = setup_of(20)
    assert cost_of_trials(few, CASE, load=lambda case: few).training == Cost()  # too few images to train on


@pytest.mark.parametrize(
    ("cost", "defenses", "steps", "train_steps"),
    [
        (TrialCost(Cost(step=0.01), Cost(step=0.01)), 12, 290, 200),
        (
            TrialCost(Cost(step=0.06), Cost(step=0.06)),
            12,
            50,
            31,
        ),  # thirteen trials, two of them thrice as long, six 1.7 times: 21.2 · 4.2 seconds
        (
            TrialCost(Cost(step=0.1), Cost(step=0.1)),
            5,
            61,
            49,
        ),  # 148 seconds for all, so six are left, which count for 9.4
        (TrialCost(Cost(step=0.2), Cost(step=0.2)), 5, 50, 0),  # even those would take 132 seconds
    ],
)
def test_what_does_not_fit_is_left_out(setup, cost, defenses, steps, train_steps):
    trials = fit_trials(setup, CASE, 104.0, cost=cost)
    assert len(trials) == 1 + defenses
    assert trials[0].case.defenses == ()
    assert trials[-1].case.defenses == ("withhold:head",)
    assert {(t.case.options["steps"], t.train_steps) for t in trials} == {(steps, train_steps)}
    assert cost.seconds(counted(trials), steps=steps, train_steps=train_steps) <= 104
    own = fit_trials(setup, CASE, 0.1, cost=cost, specs=["prune:0.5", "prune:0.6"])
    assert [t.case.defenses for t in own] == [(), ("prune:0.5",), ("prune:0.6",)]


def test_a_large_model_is_asked_for_fewer_releases(setup, monkeypatch):
    monkeypatch.setattr(defenses, "LARGE", 100)
    assert {t.releases for t in plan_trials(setup, CASE, steps=7, train_steps=5)} == {defenses.FEW_RELEASES}
