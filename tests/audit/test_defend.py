"""Trials of defenses on a tiny model: what is planned, what is measured, what is recorded, and that a run can be resumed."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from leakgauge.audit import defend, defense_budget, defense_leakage, defense_records
from leakgauge.audit.case import Case
from leakgauge.audit.defend import GRID, Trial, plan_trials, run_trials, trial_from
from leakgauge.audit.defense_budget import TrialCost, cost_of_trials, fit_trials
from leakgauge.audit.defense_leakage import draw_releases, rates, told_apart
from leakgauge.audit.defense_training import Training, accuracy, classified, fresh
from leakgauge.audit.run import run_case
from leakgauge.audit.setup import Setup
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Pixels, Victim
from leakgauge.defenses import DEFENSES, GaussianNoise, Prune, Quantize, Withhold
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.models import ViT

CASE = Case(model="tiny", data="made", options={"tv": 0.01})
HOW = Training(steps=60, batch=32, seed=0)


def labelled(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose brightest quarter is their class."""
    rng = torch.Generator().manual_seed(5)
    images, labels = 0.5 * torch.rand(count, 1, 6, 6, generator=rng), torch.arange(count) % 4
    for label in range(4):
        top, left = 3 * (label // 2), 3 * (label % 2)
        images[labels == label, :, top : top + 3, left : left + 3] += 0.5
    return images, labels


@pytest.fixture
def setup_of(victim_of):
    def make(count: int = 240, *, mode: str = "eval", **options) -> Setup:
        return Setup(victim_of(mode=mode, activation=nn.ReLU, **options), *labelled(count))

    return make


@pytest.fixture
def setup(setup_of) -> Setup:
    return setup_of()


@pytest.fixture
def load(setup_of):
    return lambda case: setup_of(mode=case.mode)


# ------------------------------------------------------------------------------------------------------------ planning


def test_the_default_grid_begins_without_defense_and_withholds_what_the_model_has(setup):
    trials = plan_trials(setup, CASE, steps=7, train_steps=5)
    assert [t.case.defenses for t in trials] == [(), *[(spec,) for spec in GRID], ("withhold:head",)]
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


def test_an_attack_without_steps_gets_none(setup):
    (trial, *_) = plan_trials(setup, replace(CASE, attack="linear", options={}), steps=7, train_steps=5)
    assert trial.case.options == {}


def test_a_trial_is_plain_data(setup):
    for trial in plan_trials(setup, CASE, steps=7, train_steps=5):
        again = trial_from(json.loads(json.dumps(asdict(trial))))
        assert again == trial
        assert again.key() == trial.key()
        assert trial.undefended().case.defenses == ()


# ------------------------------------------------------------------------------------------------------------- leakage


def test_rates_are_those_of_each_release(setup):
    rng = torch.Generator().manual_seed(1)
    weights = torch.randint(6, (9, 30), generator=rng).double()  # with many ties
    batches = torch.stack([torch.randperm(30, generator=rng)[:4] for _ in range(9)])
    areas, hits = [], 0
    for row, members in zip(weights, batches, strict=True):
        truth = torch.zeros(30).scatter(0, members, 1.0)
        areas.append(roc_auc_score(truth.numpy(), row.numpy()))
        others = row[truth == 0]
        hits += sum(float(w) > float(others.max()) for w in row[members])  # 26 others: 1 % is none of them
    auc, tpr = rates(weights, batches)
    assert auc.value == pytest.approx(sum(areas) / 9)
    assert tpr.value == pytest.approx(hits / 36)
    assert auc.low < auc.value < auc.high
    assert tpr.low <= tpr.value < tpr.high


def test_with_many_others_one_percent_may_be_above():
    weights = torch.arange(301.0).flip(0)[None].repeat(2, 1)  # the first candidate is the best, the third beaten by two
    assert rates(weights, torch.tensor([[3], [4]]))[1].value == 0.5  # three of 300 others may be above, four may not


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.1)])
def test_without_defense_the_member_is_found_and_under_noise_it_is_not(setup_of, mode, channel):
    drawn = draw_releases(setup_of(mode=mode), channel, batch=1, candidates=20, releases=50, seed=0)
    open_ = told_apart(drawn, (), seed=0)
    assert open_["auc"]["value"] == open_["tpr"]["value"] == 1.0
    assert (open_["candidates"], open_["batch"], open_["releases"], open_["unknown"]) == (20, 1, 50, "")
    hidden = told_apart(drawn, (GaussianNoise(relative=1e4),), seed=0)
    assert hidden["auc"]["low"] < 0.5 < hidden["auc"]["high"]
    assert hidden["tpr"]["value"] < 0.3


def test_more_noise_tells_less(setup):
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=100, seed=0)
    areas = [told_apart(drawn, (GaussianNoise(relative=r),), seed=0)["auc"]["value"] for r in (0.0, 10.0, 100.0)]
    assert areas[0] == 1.0
    assert areas[0] > areas[1] + 0.02 > areas[2] + 0.04


def test_what_tells_nothing_leaves_a_coin(setup):
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=10, seed=0)
    found = told_apart(drawn, (Prune(1.0),), seed=0)
    assert found["auc"]["value"] == 0.5
    assert found["tpr"]["value"] == 0.0


@dataclass(frozen=True)
class OneByOne:
    """A defense that knows no rows."""

    inner: object

    def __call__(self, signal, /, *, rng):
        return self.inner(signal, rng=rng)


@pytest.mark.parametrize("defense", [Prune(0.8), Quantize(3)])
def test_rows_at_once_are_rows_one_by_one(setup, defense):
    drawn = draw_releases(setup, Gradient(), batch=2, candidates=20, releases=12, seed=0)
    assert told_apart(drawn, (defense,), seed=0) == told_apart(drawn, (OneByOne(defense),), seed=0)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_batch_is_the_mean_of_its_samples_only_where_they_do_not_meet(setup_of, monkeypatch, mode):
    drawn = draw_releases(setup_of(mode=mode), Gradient(), batch=3, candidates=12, releases=4, seed=0)
    (short_cut,) = drawn.signals()
    monkeypatch.setattr(defense_leakage, "_mean_of_singles", lambda *_: mode == "train")
    (other,) = drawn.signals()
    agree = all(torch.allclose(short_cut[n], other[n], atol=1e-6) for n in short_cut)
    assert agree == (mode == "eval")


def test_withheld_tensors_are_not_read(setup):
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=5, seed=0)
    found = told_apart(drawn, (Withhold(("head",)),), seed=0)
    assert (found["tensors"], found["of"]) == (4, 6)
    everything = ("head", "first_layer", "norms")
    with pytest.raises(Inapplicable, match="nothing that the candidates"):
        told_apart(drawn, (Withhold(everything),), seed=0)


def test_a_large_model_is_read_in_part_and_in_pieces(setup, monkeypatch):
    (expected,) = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=6, seed=0).signals()
    monkeypatch.setattr("leakgauge.monitor.whitebox.FLOATS", 20 * 40)
    monkeypatch.setattr(defense_leakage, "FLOATS", 1000)
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=6, seed=0)
    pieces = list(drawn.signals())
    assert len(pieces) == 3  # two releases of 475 numbers each fit at once
    assert all(torch.allclose(torch.cat([p[n] for p in pieces]), expected[n], atol=1e-6) for n in expected)
    found = told_apart(drawn, (), seed=0)
    assert found["tensors"] < found["of"]
    assert any("lack of memory" in note for note in found["notes"])


@pytest.mark.parametrize(("count", "batch"), [(8, 1), (30, 16)])
def test_few_images_are_refused(setup_of, count, batch):
    with pytest.raises(Inapplicable, match="candidates beside the batch"):
        draw_releases(setup_of(count), Gradient(), batch=batch, candidates=64, releases=2, seed=0)


# ------------------------------------------------------------------------------------------------------------ accuracy


def test_fresh_weights_keep_nothing_that_was_learned(setup):
    model = ViT()
    model.head.weight.requires_grad_(False)
    before = {n: p.clone() for n, p in model.named_parameters()}
    made = dict(fresh(model, seed=3, device=torch.device("cpu")).named_parameters())
    again = dict(fresh(model, seed=3, device=torch.device("cpu")).named_parameters())
    assert all(torch.equal(made[n], again[n]) for n in made)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert torch.equal(made["head.weight"], before["head.weight"])
    (name,) = [n for n in made if "pos" in n]
    assert not torch.equal(made[name], before[name])
    assert torch.equal(made[name].flatten().sort().values, before[name].flatten().sort().values)
    changed = [n for n, p in made.items() if p.ndim > 1 and n != "head.weight"]
    assert all(not torch.equal(made[n], before[n]) for n in changed)


def test_the_training_is_plain_adam_on_the_same_batches(setup):
    """Against a loop written with modules, on the split and order that the seed gives."""
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0))
    held_out, train = order[:120], order[120:]
    rng = torch.Generator().manual_seed(1)
    rows = torch.cat([train[torch.randperm(120, generator=rng)] for _ in range(16)])
    model = fresh(setup.victim.model, seed=0, device=torch.device("cpu")).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(60):
        at = rows[step * 32 : (step + 1) * 32]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(setup.images[at]), setup.labels[at]).backward()
        optimizer.step()
    expected = model.eval()(setup.images[held_out]).argmax(1) == setup.labels[held_out]
    right = classified(setup, (), HOW)
    assert torch.equal(right, expected)
    assert right.double().mean() > 0.9


def test_a_defense_that_lets_nothing_through_costs_what_was_to_be_learned(setup):
    without = classified(setup, (), HOW)
    free = accuracy(setup, classified(setup, (GaussianNoise(relative=0.0),), HOW), without, HOW)
    assert free["cost"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert (free["images"], free["trained_on"], free["steps"], free["batch"]) == (120, 120, 60, 32)
    nothing = accuracy(setup, classified(setup, (Prune(1.0),), HOW), without, HOW)
    assert nothing["value"] < 0.6
    assert nothing["cost"]["value"] == pytest.approx(free["value"] - nothing["value"])
    assert 0 < nothing["cost"]["low"] < nothing["cost"]["value"] < nothing["cost"]["high"]
    assert nothing["low"] < nothing["value"] < nothing["high"]


def test_predictions_that_are_no_numbers_are_wrong(setup):
    broken = OneByOne(lambda signal, rng: {n: t * math.nan for n, t in signal.items()})
    assert not classified(setup, (broken,), HOW).any()


def test_an_accuracy_is_unknown_rather_than_invented(setup, setup_of):
    with pytest.raises(Inapplicable, match="at least 200 images"):
        classified(setup_of(199), (), HOW)
    right = torch.zeros(120, dtype=torch.bool)
    right[:30] = True
    found = accuracy(setup, right, right, HOW)
    assert found["cost"] is None
    assert "no better than the commonest class" in found["unknown"]
    assert "did not come to its end" in accuracy(setup, right, None, HOW)["unknown"]


# ------------------------------------------------------------------------------------------------------------- running

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
        assert record.metrics == alone.metrics
        assert record.null == alone.null
        assert (record.verdict, record.rule) == (alone.verdict, alone.rule)
        assert (tmp_path / record.pictures["reconstruction"]).is_file()
    assert records[0].cost == 0.0
    assert records[0].auc == 1.0
    assert table(defense_records.read(tmp_path)) == table(records)


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
    monkeypatch.setattr(defend, "_run", None)  # nothing is left to run, but the order is put right
    assert table(run_trials(trials, load=load, folder=folder, resume=True)) == table(whole)
    assert table(defense_records.read(folder)) == table(whole)


def test_the_null_run_is_made_once(setup, load, tmp_path, monkeypatch):
    calls = []
    real = defend.null_run
    monkeypatch.setattr(defend, "null_run", lambda *a, **k: calls.append(1) or real(*a, **k))
    run_trials(quick(setup), load=load, folder=tmp_path)
    assert len(calls) == 1


def test_a_refused_attack_leaves_the_other_measurements(setup, load, tmp_path):
    trials = quick(setup, replace(CASE, attack="idlg", options={}, batch_size=2), specs=["prune:0.9"])
    for record in run_trials(trials, load=load, folder=tmp_path):
        assert record.status == "refused"
        assert record.reason
        assert record.verdict is None
        assert record.metrics == {}
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

    monkeypatch.setitem(DEFENSES, "broken", lambda: OneByOne(crash))
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


# -------------------------------------------------------------------------------------------------------------- budget


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
    assert defense_budget._of_training(setup_of(20), HOW) == (None, 0.0)


@pytest.mark.parametrize(
    ("cost", "defenses", "steps", "train_steps"),
    [
        (TrialCost(0.01, 0.01, 0.0, 0.0), 10, 550, 200),
        (TrialCost(0.1, 0.1, 0.0, 0.0), 10, 50, 25),  # the fewest steps of eleven trials: 77 seconds
        (TrialCost(0.2, 0.1, 0.0, 0.0), 4, 50, 66),  # 132 seconds for eleven, so five are left
        (TrialCost(0.3, 0.3, 0.0, 0.0, 0.0), 4, 50, 0),  # even those would take 105 seconds
    ],
)
def test_what_does_not_fit_is_left_out(setup, load, monkeypatch, cost, defenses, steps, train_steps):
    monkeypatch.setattr(defense_budget, "cost_of_trials", lambda *_, **__: cost)
    trials = fit_trials(setup, CASE, 83.0, load=load)
    assert len(trials) == 1 + defenses
    assert trials[0].case.defenses == ()
    assert trials[-1].case.defenses == ("withhold:head",)
    assert {(t.case.options["steps"], t.train_steps) for t in trials} == {(steps, train_steps)}
    assert cost.seconds(len(trials), steps=steps, train_steps=train_steps) <= 83
    own = fit_trials(setup, CASE, 0.1, load=load, specs=["prune:0.5", "prune:0.6"])
    assert [t.case.defenses for t in own] == [(), ("prune:0.5",), ("prune:0.6",)]


def test_without_training_the_cost_is_unknown(setup, load, tmp_path):
    trials = [replace(t, train_steps=0) for t in quick(setup, specs=["prune:0.9"])]
    for record in run_trials(trials, load=load, folder=tmp_path):
        assert record.status == "done"
        assert record.auc is not None
        assert "no training was planned" in record.accuracy["unknown"]


def test_a_large_model_is_asked_for_fewer_releases(setup, monkeypatch):
    monkeypatch.setattr(defend, "LARGE", 100)
    assert {t.releases for t in plan_trials(setup, CASE, steps=7, train_steps=5)} == {defend.FEW_RELEASES}
