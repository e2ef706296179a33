"""Defenses of features: every sample is a message of its own, whatever else is in the batch."""

from __future__ import annotations

import pytest
import torch

from leakgauge import share
from leakgauge.channels import Features
from leakgauge.core import RowByRow
from leakgauge.defenses import (
    DEFENSES,
    Clip,
    GaussianNoise,
    LaplacianNoise,
    MaskChannels,
    Prune,
    PruneChannels,
    Quantize,
    Withhold,
)
from leakgauge.errors import BadInput
from leakgauge.testing import tiny_case

SCALES = torch.tensor([1.0, 100.0, 0.01]).view(3, 1, 1, 1)
ROWS = {"z": SCALES * torch.randn(3, 6, 5, 5, generator=torch.Generator().manual_seed(0)), "w": torch.ones(3, 4)}


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def row(i: int) -> dict:
    return {name: value[i] for name, value in ROWS.items()}


@pytest.mark.parametrize(
    "defense", [Clip(2.0), Prune(0.3), Quantize(4), MaskChannels(0.5), PruneChannels(0.5)], ids=repr
)
def test_a_row_is_what_it_would_be_alone(defense):
    together = defense.by_row(ROWS, rng=rng())
    for i in range(3):
        for name, value in defense(row(i), rng=rng()).items():
            torch.testing.assert_close(together[name][i], value)


@pytest.mark.parametrize("noise", [GaussianNoise, LaplacianNoise])
def test_noise_is_measured_against_each_row(noise):
    wide = {"z": SCALES * torch.randn(3, 40, 25, 25, generator=torch.Generator().manual_seed(0))}
    added = noise(relative=0.5).by_row(wide, rng=rng())["z"] - wide["z"]
    ratio = added.flatten(1).norm(dim=1) / wide["z"].flatten(1).norm(dim=1)
    torch.testing.assert_close(ratio, torch.full((3,), 0.5), rtol=0.03, atol=0)
    same = noise(std=0.2).by_row(wide, rng=rng())["z"] - wide["z"]
    torch.testing.assert_close(same.flatten(1).std(1), torch.full((3,), 0.2), rtol=0.03, atol=0)


def test_every_defense_knows_rows():
    made = [DEFENSES[name](**options) for name, options in (("prune", {"fraction": 0.1}), ("clip", {"norm": 1.0}))]
    assert all(isinstance(defense, RowByRow) for defense in [*made, GaussianNoise(std=1.0), Quantize(8)])


def test_masked_channels_are_the_same_for_all_samples_and_places():
    sent = MaskChannels(0.5, seed=3).by_row(ROWS, rng=rng())["z"]
    gone = (sent == 0).flatten(2).all(2)
    assert gone.sum(1).tolist() == [3, 3, 3]
    assert (gone[0] == gone).all()
    assert torch.equal(sent[~gone], ROWS["z"][~gone])
    other = MaskChannels(0.5, seed=4).by_row(ROWS, rng=rng())["z"]
    assert not torch.equal(other, sent)


def test_pruned_channels_are_the_weakest_of_each_sample():
    z = torch.tensor([[[1.0, 5.0, 2.0]], [[9.0, 1.0, 3.0]]])  # two samples of one token with three channels
    sent = PruneChannels(1 / 3).by_row({"z": z}, rng=rng())["z"]
    assert sent.tolist() == [[[0.0, 5.0, 2.0]], [[9.0, 0.0, 3.0]]]


def test_share_defends_sample_by_sample():
    victim, x, y = tiny_case("cnn", count=3)
    channel, defense = Features("features.2"), Quantize(3)
    whole = share(victim, channel, x, y, defenses=[defense]).signal["features.2"]
    for i in range(3):
        alone = share(victim, channel, x[i : i + 1], y[i : i + 1], defenses=[defense]).signal["features.2"]
        assert len(alone.unique()) <= 7
        torch.testing.assert_close(whole[i : i + 1], alone)


def test_withholding_means_nothing_for_features():
    victim, x, y = tiny_case("cnn")
    with pytest.raises(BadInput, match="mask channels instead"):
        share(victim, Features("features.2"), x, y, defenses=[Withhold(("head",))])
    with pytest.raises(BadInput, match="fraction between 0 and 1"):
        MaskChannels(1.5)
