"""The search for settings: what it looks at, that it is repeatable, and that a killed one goes on as if nothing was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import ATTACKS
from leakgauge.audit.session import Setup
from leakgauge.audit.tune import PAPER, LogUniform, OneOf, Trial, tune
from leakgauge.errors import BadInput, Inapplicable

optuna = pytest.importorskip("optuna")


@pytest.fixture
def base(quick):
    return quick(attack="feasibility", options={"steps": 8, "restarts": 2}, reveal=("size", "labels"))


def test_the_papers_space_is_the_default():
    assert PAPER["tv"] == LogUniform(1e-6, 1e-1)
    assert PAPER["statistics"] == OneOf((0.0, 1e-4, 1e-2))
    assert PAPER["lr"] == LogUniform(1e-4, 1e2)


def test_settings_lie_in_the_space_and_the_best_is_the_adversarys(base, load, tmp_path):
    found = tune(base, load=load, folder=tmp_path, trials=6, images=(0, 3, 5), seed=1)
    assert len(found.trials) == 6
    assert not found.oracle
    for trial in found.trials:
        assert 1e-6 <= trial.options["tv"] <= 1e-1
        assert 1e-4 <= trial.options["lr"] <= 1e2
        assert trial.options["statistics"] in (0.0, 1e-4, 1e-2)
        assert trial.first in (0, 3, 5)
        assert trial.best_ssim >= trial.ssim
    finished = [t for t in found.trials if t.ended == "finished"]
    assert found.best.mismatch == min(t.mismatch for t in finished)


def test_the_oracle_looks_at_the_truth(base, load, tmp_path):
    found = tune(base, load=load, folder=tmp_path, trials=6, oracle=True, seed=1)
    assert found.oracle
    assert found.best.best_ssim == max(t.best_ssim for t in found.trials if t.ended == "finished")


def test_the_mismatch_is_that_of_the_reconstruction(base, load, tmp_path):
    """At the truth the signals agree: a search that starts there finds a mismatch of zero."""
    there = replace(base, name="", reveal=("size", "labels", "noisy_copy:0.0"))
    found = tune(there, load=load, folder=tmp_path, trials=1, space={"lr": LogUniform(1e-6, 2e-6)})
    assert found.best.mismatch == pytest.approx(0, abs=1e-4)
    assert found.best.ssim == pytest.approx(1, abs=1e-3)


def test_a_clients_dropout_adds_no_chance_to_a_search(base, tmp_path, victim_of, batch_of):
    """The mismatch is without dropout: another mask for each trial would choose among equals, and a resumed search differ."""
    images, _ = batch_of(20)

    def load(case):
        return Setup(victim_of(mode=case.mode, dropout=0.5), images, torch.arange(20) % 4)

    case, found = replace(base, name="", mode="train", batch_size=2), []
    for number in range(2):
        torch.manual_seed(number)
        found.append(tune(case, load=load, folder=tmp_path / str(number), trials=2).trials)
    assert found[0] == found[1]


def test_steps_may_stand_behind_the_attacks_name(base, load, tmp_path):
    written = replace(base, name="", attack="feasibility:steps=8,restarts=2", options={})
    one, other = (
        tune(case, load=load, folder=tmp_path / name, trials=2) for name, case in (("a", base), ("b", written))
    )
    assert one.trials == other.trials


def test_a_killed_search_ends_as_an_undisturbed_one(base, load, tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = tune(base, load=load, folder=tmp_path / "whole", trials=6, seed=3)
    loads = 0

    def dies(case):
        nonlocal loads
        loads += 1
        if loads == 4:
            raise KeyboardInterrupt  # the trial under way is left as running, as after SIGKILL
        return load(case)

    with pytest.raises(KeyboardInterrupt):
        tune(base, load=dies, folder=tmp_path / "cut", trials=6, seed=3)
    assert tune(base, load=load, folder=tmp_path / "cut", trials=6, seed=3).trials == whole.trials

    def never(case):
        raise AssertionError("everything was done")

    assert tune(base, load=never, folder=tmp_path / "cut", trials=6, seed=3).best == whole.best


def test_other_searches_share_a_folder_but_nothing_else(base, load, tmp_path):
    first = tune(base, load=load, folder=tmp_path, trials=2, seed=0)
    other = tune(base, load=load, folder=tmp_path, trials=2, seed=1)
    assert first.trials != other.trials
    assert len(tune(base, load=load, folder=tmp_path, trials=2, oracle=True).trials) == 2


def test_hopeless_settings_are_given_up(base, load, tmp_path):
    """With a useless learning rate among good ones, some trial ends after a quarter of its steps."""
    space = {"lr": OneOf((1e-9, 0.1))}
    found = tune(base, load=load, folder=tmp_path, trials=12, space=space, startup=2, seed=5)
    pruned = [t for t in found.trials if t.ended == "pruned"]
    assert pruned
    assert all(t.options["lr"] == 1e-9 for t in pruned)
    assert found.best.options["lr"] == 0.1


def test_a_refused_setting_has_no_score_and_a_crash_is_raised(base, load, tmp_path, monkeypatch):
    whole = ATTACKS["feasibility"]

    def picky(*, tv=0.01, lr=0.1, steps=4, restarts=1):
        if lr > 0.5:
            raise Inapplicable("too fast")
        return whole(tv=tv, lr=lr, steps=steps, restarts=restarts)

    monkeypatch.setitem(ATTACKS, "feasibility", picky)
    found = tune(base, load=load, folder=tmp_path, trials=6, space={"lr": OneOf((0.1, 1.0))}, seed=2)
    refused = [t for t in found.trials if t.ended == "too fast"]
    assert refused
    assert refused[0] == Trial({"lr": 1.0}, 0, None, None, None, "too fast")
    with pytest.raises(Inapplicable, match="none of 1 settings could be tried; the first: too fast"):
        tune(base, load=load, folder=tmp_path, trials=1, space={"lr": OneOf((2.0,))})

    def breaks(case):
        raise ZeroDivisionError("a crash")

    with pytest.raises(ZeroDivisionError):
        tune(base, load=breaks, folder=tmp_path, trials=1, seed=9)


def test_what_cannot_be_tuned(quick, base, load, tmp_path):
    with pytest.raises(BadInput, match="has none of the options"):
        tune(quick(attack="linear", options={}), load=load, folder=tmp_path)
    with pytest.raises(BadInput, match="at least 1 trial"):
        tune(base, load=load, folder=tmp_path, trials=0)
    with pytest.raises(BadInput, match="rungs that grow"):
        tune(base, load=load, folder=tmp_path, rungs=(1.0, 0.5))


def test_optuna_speaks_as_before(base, load, tmp_path):
    before = optuna.logging.get_verbosity()
    tune(base, load=load, folder=tmp_path, trials=1)
    assert optuna.logging.get_verbosity() == before
