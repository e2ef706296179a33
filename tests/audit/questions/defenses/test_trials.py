"""Trials of defenses on a tiny model: what is planned, what is recorded, and that a run can be resumed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from leakgauge.audit.case import Case
from leakgauge.audit.questions import defense_records, defenses
from leakgauge.audit.questions.defense_records import Trial
from leakgauge.audit.questions.defenses import GRID, plan_trials, run_trials
from leakgauge.audit.run import run_case
from leakgauge.audit.session import Setup
from leakgauge.audit.typed import typed
from leakgauge.core import Pixels, Victim
from leakgauge.defenses import DEFENSES
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.models import ViT
from tests.audit.questions.defenses.tiny import CASE


def test_the_default_grid_begins_without_defense_and_withholds_what_the_model_has(setup):
    trials = plan_trials(setup, CASE, steps=7, train_steps=5)
    assert [t.case.protections() for t in trials] == [(), *[(spec,) for spec in GRID], ("withhold:head",)]
    assert {t.case.options["steps"] for t in trials} == {7}
    assert {t.train_steps for t in trials} == {5}
    assert len({t.key() for t in trials}) == len(trials)
    vit = Setup(Victim(ViT(), Pixels((1, 28, 28))), torch.rand(4, 1, 28, 28), torch.zeros(4).long())
    assert plan_trials(vit, CASE, steps=7, train_steps=5)[-1].case.defenses == ("withhold:position_embedding",)


def test_own_defenses_are_tried_once_each_and_built_before_anything_runs(setup):
    specs = ["prune:0.5", ["clip:1.0", "gaussian_noise:std=0.1"], "prune:0.5"]
    found = [t.case.defenses for t in plan_trials(setup, CASE, steps=7, train_steps=5, specs=specs)]
    assert found == [(), ("prune:0.5",), ("clip:1.0", "gaussian_noise:std=0.1")]
    own = replace(CASE, defenses=("clip:1.0", "prune:0.5"))
    trials = plan_trials(setup, own, steps=7, train_steps=5)
    assert trials[0].case.defenses == ()
    assert trials[-1].case.defenses == own.defenses
    with pytest.raises(BadInput, match="unknown defense"):
        plan_trials(setup, CASE, steps=7, train_steps=5, specs=["prun:0.5"])
    with pytest.raises(BadInput, match="train_steps"):
        plan_trials(setup, CASE, steps=7, train_steps=-1)


def test_dp_sgd_is_tried_in_place_of_the_plain_channel(setup):
    trials = plan_trials(setup, CASE, steps=7, train_steps=5, specs=[["dpsgd:clip=1,noise=2", "prune:0.5"]])
    assert (trials[1].case.channel, trials[1].case.defenses) == ("dpsgd:clip=1,noise=2", ("prune:0.5",))
    assert trials[1].undefended() == trials[0]
    own = plan_trials(setup, replace(CASE, channel="dpsgd:clip=3,noise=1"), steps=7, train_steps=5)
    assert own[0].case.protections() == ()  # compared with no protection at all
    assert own[-1].case.protections() == ("dpsgd:clip=3,noise=1",)
    for case in (replace(CASE, channel="aggregate:1"), replace(CASE, local_steps=2)):
        found = plan_trials(setup, case, steps=7, train_steps=5)
        assert not any("dpsgd" in spec for t in found for spec in t.case.protections())
        assert {t.case.channel for t in found} == {case.channel}
        with pytest.raises(BadInput, match="a step is private once, and by itself"):
            plan_trials(setup, case, steps=7, train_steps=5, specs=["dpsgd"])


def test_features_are_refused_before_anything_runs(setup):
    """They are sent by inference: there is no update to defend, and no training to lose accuracy in."""
    with pytest.raises(Inapplicable, match="features:0 is sent by inference; try them one by one with leakgauge scan"):
        plan_trials(setup, replace(CASE, channel="features:0"), steps=7, train_steps=5)


def test_an_attack_without_steps_gets_none(setup):
    (trial, *_) = plan_trials(setup, replace(CASE, attack="linear", options={}), steps=7, train_steps=5)
    assert trial.case.options == {}


def test_a_trial_is_plain_data(setup):
    for trial in plan_trials(setup, CASE, steps=7, train_steps=5):
        again = typed(Trial, json.loads(json.dumps(asdict(trial))))
        assert again == trial
        assert again.key() == trial.key()
        assert trial.undefended().case.defenses == ()


SPECS = ["prune:0.9", "gaussian_noise:relative=1.0", "withhold:head"]


def quick(setup: Setup, case: Case = CASE, specs=SPECS) -> tuple[Trial, ...]:
    trials = plan_trials(setup, case, steps=5, train_steps=60, specs=specs)
    return tuple(replace(t, candidates=12, releases=10) for t in trials)


def table(records) -> list[dict]:
    """Everything but the time, as JSON has it."""
    kept = [{k: v for k, v in asdict(r).items() if k not in ("seconds", "finished")} for r in records]
    return json.loads(json.dumps(kept))


def test_a_trial_scores_as_the_case_itself_does(setup, load, tmp_path):
    trials = quick(setup)
    records = run_trials(trials, load=load, folder=tmp_path)
    assert [r.status for r in records] == ["done"] * 4
    for trial, record in zip(trials, records, strict=True):
        alone = run_case(trial.case, load=load, folder=tmp_path)
        assert record.scores == alone.scores
        assert record.null == alone.null
        assert record.verdict == alone.verdict
        assert (tmp_path / record.pictures["reconstruction"]).is_file()
    assert records[0].cost == 0.0
    assert records[0].auc == 1.0
    assert table(defense_records.read(tmp_path)) == table(records)


def test_dp_sgd_where_a_layer_normalises_over_the_batch(setup, load, tmp_path):
    _, record = run_trials(quick(setup, specs=["dpsgd:clip=0.1,noise=1"]), load=load, folder=tmp_path)
    assert record.status == "done"  # the attack is on an update made in eval mode, the training is not
    assert "1 normalises over the batch" in record.accuracy["unknown"]


def test_dp_sgd_protects_members_costs_accuracy_and_states_its_guarantee(setup_of, tmp_path):
    specs, setup = ["dpsgd:clip=0.1,noise=0.01", "dpsgd:clip=0.1,noise=300"], setup_of(norm=False)
    records = run_trials(quick(setup, specs=specs), load=lambda case: setup, folder=tmp_path)
    assert [r.defenses for r in records] == [(), *[(spec,) for spec in specs]]
    plain, weak, strong = records
    assert plain.auc == 1.0
    assert weak.auc > 0.95  # clipping alone hides nobody
    assert strong.leakage["auc"]["low"] < 0.5 < strong.leakage["auc"]["high"]
    assert strong.cost > 0.2
    assert "ε = " in strong.accuracy["privacy"]
    assert "privacy" not in plain.accuracy
    assert strong.channel.startswith("DPSGD(clip=0.1, noise=300, ")


def test_a_resumed_run_gives_the_same_table(setup, load, tmp_path, monkeypatch):
    trials = quick(setup)
    whole = run_trials(trials, load=load, folder=tmp_path)
    lines = (tmp_path / defense_records.FILE).read_bytes().splitlines(keepends=True)
    for kept in (1, 3):
        folder = tmp_path / str(kept)
        folder.mkdir()
        (folder / defense_records.FILE).write_bytes(b"".join(lines[:kept]) + lines[kept][:40])
        told = []
        found = run_trials(trials, load=load, folder=folder, resume=True, on_record=told.append)
        assert table(found) == table(whole) == table(defense_records.read(folder))
        assert [r.key for r in told] == [t.key() for t in trials[kept:]]
    (folder / defense_records.FILE).write_bytes(b"".join(reversed(lines)))
    monkeypatch.setattr(defenses, "_run", None)  # nothing is left to run, but the order is put right
    assert table(run_trials(trials, load=load, folder=folder, resume=True)) == table(whole)
    assert table(defense_records.read(folder)) == table(whole)


def test_the_null_run_is_made_once(setup, load, tmp_path, monkeypatch):
    calls = []
    real = defenses.null_run
    monkeypatch.setattr(defenses, "null_run", lambda *a, **k: calls.append(1) or real(*a, **k))
    run_trials(quick(setup), load=load, folder=tmp_path)
    assert len(calls) == 1


def test_a_refused_attack_leaves_the_other_measurements(setup, load, tmp_path):
    trials = quick(setup, replace(CASE, attack="idlg", options={}, batch_size=2), specs=["prune:0.9"])
    for record in run_trials(trials, load=load, folder=tmp_path):
        assert record.status == "refused"
        assert record.reason
        assert record.verdict is None
        assert record.scores is None
        assert record.leakage["auc"]["value"] > 0.5
        assert record.cost is not None


def test_a_defense_that_does_not_fit_the_model_is_refused_in_every_part(setup, load, tmp_path):
    (_, record) = run_trials(quick(setup, specs=["withhold:position_embedding"]), load=load, folder=tmp_path)
    assert record.status == "refused"
    assert "no position_embedding" in record.reason
    assert "no position_embedding" in record.leakage["unknown"]
    assert "no position_embedding" in record.accuracy["unknown"]


def test_a_crash_is_an_error_and_never_a_score(setup, load, tmp_path, monkeypatch):
    def crash(signal, rng):
        raise RuntimeError("boom")

    monkeypatch.setitem(DEFENSES, "broken", lambda: crash)
    plain, broken, after = run_trials(quick(setup, specs=["broken", "prune:0.9"]), load=load, folder=tmp_path)
    assert (plain.status, broken.status, after.status) == ("done", "error", "done")
    assert broken.reason == "RuntimeError: boom"
    assert "Traceback" in broken.notes[0]
    assert (broken.verdict, broken.ssim, broken.auc, broken.cost) == (None, None, None, None)


def test_the_users_mistakes_are_raised_without_a_record(setup, load, tmp_path):
    trials = quick(setup, replace(CASE, first=999))
    with pytest.raises(BadInput, match="the data holds 240"):
        run_trials(trials, load=load, folder=tmp_path)
    assert not defense_records.exists(tmp_path)


def test_little_data_leaves_the_attack(setup_of, tmp_path):
    small = setup_of(20)
    (record, *_) = run_trials(quick(small), load=lambda case: setup_of(20, mode=case.mode), folder=tmp_path)
    assert record.status == "done"
    assert "at least 200 images" in record.accuracy["unknown"]
    assert record.cost is None
    assert record.auc == 1.0


def test_without_training_the_cost_is_unknown(setup, load, tmp_path):
    trials = [replace(t, train_steps=0) for t in quick(setup, specs=["prune:0.9"])]
    for record in run_trials(trials, load=load, folder=tmp_path):
        assert record.status == "done"
        assert record.auc is not None
        assert "no training was planned" in record.accuracy["unknown"]


def test_channels_that_may_be_unknown_are_attacked_with_and_without_knowing_them(setup, load, tmp_path):
    specs = ["soteria:0.5", "precode:4", "transformed:rotate=90,shear=0,shift=0"]
    trials = plan_trials(setup, CASE, steps=3, train_steps=2, specs=specs)
    assert [t.case.reveal for t in trials] == [("size",), *[("size", "defended")] * 3]
    plain, *found = run_trials(trials, load=load, folder=tmp_path)
    assert plain.static is None
    for record in found:
        assert record.status == "done", record.reason
        assert record.static is not None
        assert record.accuracy["value"] >= 0
        assert record.auc is not None
        assert record.epsilon is None
    assert found[0].assumed("deployable")[-1] == "defense known to the adversary (Soteria)"
    assert defense_records.read(tmp_path)[2] == found[1]
