"""Who was in the batch, told from what a defense lets through."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from leakgauge.audit.questions import defense_measures
from leakgauge.audit.questions.defense_measures import draw_releases, rates, read_members
from leakgauge.channels import DPSGD, Aggregate, FedAvg, Gradient
from leakgauge.defenses import GaussianNoise, Prune, Quantize, Withhold
from leakgauge.errors import Inapplicable


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
    open_ = read_members(drawn, (), seed=0)
    assert open_["auc"]["value"] == open_["tpr"]["value"] == 1.0
    assert (open_["candidates"], open_["batch"], open_["releases"], open_["unknown"]) == (20, 1, 50, "")
    hidden = read_members(drawn, (GaussianNoise(relative=1e4),), seed=0)
    assert hidden["auc"]["low"] < 0.5 < hidden["auc"]["high"]
    assert hidden["tpr"]["value"] < 0.3


def test_updates_that_differ_in_the_fourth_digit_are_told_apart(setup):
    """A common part drowns the differences of inner products in single precision, not those of the updates themselves."""
    drawn = draw_releases(setup, Gradient(), batch=2, candidates=20, releases=30, seed=0)
    rng = torch.Generator().manual_seed(0)
    alike = {
        name: torch.randn(rows.shape[1:], generator=rng) + 1e-4 * torch.randn(rows.shape, generator=rng)
        for name, rows in drawn.rows.items()
    }
    assert read_members(replace(drawn, rows=alike), (), seed=0)["auc"]["value"] == 1.0


def test_dp_sgd_refuses_members_where_the_channel_refuses_the_model(setup_of):
    drawn = draw_releases(setup_of(mode="train"), Gradient(), batch=2, candidates=20, releases=5, seed=0)
    with pytest.raises(Inapplicable, match="normalises over the batch"):
        read_members(replace(drawn, channel=DPSGD(1.0, 1.0)), (), seed=0)


@pytest.mark.parametrize("channel", [DPSGD(1.0, 1.0), Aggregate(2)])
def test_samples_that_are_kept_apart_are_not_said_to_act_on_each_other(setup, channel):
    drawn = draw_releases(setup, channel, batch=2, candidates=20, releases=5, seed=0)
    assert read_members(drawn, (), seed=0)["notes"] == []


def test_more_noise_tells_less(setup):
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=100, seed=0)
    areas = [read_members(drawn, (GaussianNoise(relative=r),), seed=0)["auc"]["value"] for r in (0.0, 10.0, 100.0)]
    assert areas[0] == 1.0
    assert areas[0] > areas[1] + 0.02 > areas[2] + 0.04


def test_what_tells_nothing_leaves_a_coin(setup):
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=10, seed=0)
    found = read_members(drawn, (Prune(1.0),), seed=0)
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
    assert read_members(drawn, (defense,), seed=0) == read_members(drawn, (OneByOne(defense),), seed=0)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_a_batch_is_the_mean_of_its_samples_only_where_they_do_not_meet(setup_of, monkeypatch, mode):
    drawn = draw_releases(setup_of(mode=mode), Gradient(), batch=3, candidates=12, releases=4, seed=0)
    (short_cut,) = drawn.signals()
    monkeypatch.setattr(defense_measures, "_mean_of_singles", lambda *_: mode == "train")
    (other,) = drawn.signals()
    agree = all(torch.allclose(short_cut[n], other[n], atol=1e-6) for n in short_cut)
    assert agree == (mode == "eval")


def test_withheld_tensors_are_not_read(setup):
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=5, seed=0)
    found = read_members(drawn, (Withhold(("head",)),), seed=0)
    assert (found["tensors"], found["of"]) == (4, 6)
    everything = ("head", "first_layer", "norms")
    with pytest.raises(Inapplicable, match="nothing that the candidates"):
        read_members(drawn, (Withhold(everything),), seed=0)


def test_a_large_model_is_read_in_part_and_in_pieces(setup, monkeypatch):
    (expected,) = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=6, seed=0).signals()
    monkeypatch.setattr("leakgauge.monitor.whitebox.FLOATS", 20 * 40)
    monkeypatch.setattr(defense_measures, "FLOATS", 1000)
    drawn = draw_releases(setup, Gradient(), batch=1, candidates=20, releases=6, seed=0)
    pieces = list(drawn.signals())
    assert len(pieces) == 3  # two releases of 475 numbers each fit at once
    assert all(torch.allclose(torch.cat([p[n] for p in pieces]), expected[n], atol=1e-6) for n in expected)
    found = read_members(drawn, (), seed=0)
    assert found["tensors"] < found["of"]
    assert any("lack of memory" in note for note in found["notes"])


@pytest.mark.parametrize(("count", "batch"), [(8, 1), (30, 16)])
def test_few_images_are_refused(setup_of, count, batch):
    with pytest.raises(Inapplicable, match="candidates beside the batch"):
        draw_releases(setup_of(count), Gradient(), batch=batch, candidates=64, releases=2, seed=0)
