"""The scan on a small victim: known truths at its ends, refusals kept as rows, resuming."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from leakgauge.core import Pixels, Victim
from leakgauge.defenses import GaussianNoise, MaskChannels
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.baseline import mean_image
from leakgauge.split import cuts, scan
from leakgauge.split.envelope import envelope, kinks
from leakgauge.split.inverters import RidgeInverter
from leakgauge.split.scan import Images

FEW = ["features.conv1_1", "features.relu1_2", "features.pool2", "head"]


@dataclasses.dataclass(frozen=True)
class Guess:
    """Always the mean image."""

    def __call__(self, features, images, /, *, epochs, seed):
        return lambda sent: mean_image(images).expand(len(sent), -1, -1, -1)


@pytest.fixture(scope="module")
def whole(victim, some):
    return scan(victim, some(160), some(40, seed=1), FEW, seed=2)


def test_deeper_cuts_leak_less(whole):
    fvu = [row.fvu for row in whole.rows]
    assert [row.cut for row in whole.rows] == FEW
    assert fvu[0] < 0.02  # a convolution with more channels than the image is invertible
    assert fvu[-1] > 5 * fvu[0]
    assert list(whole.envelope.values()) == list(envelope(fvu))
    assert (whole.auxiliary, whole.tested, whole.defenses) == (160, 40, ())
    assert whole.attack == "RidgeInverter(most=None)"


def test_every_number_is_there(whole):
    for row in whole.rows:
        assert row.fvu_low <= row.fvu <= row.fvu_high
        assert row.refusal == ""
        assert row.mse_per_pixel == pytest.approx(row.mse)  # grey images
        assert row.worst_mse <= row.mse
        assert 0 <= row.reidentified <= 1
        assert 0 < row.within <= 1
        assert 1 <= row.effective_rank <= 40
        assert row.radius > 0
        assert math.isfinite(row.decision_entropy_per_dimension)
    assert whole.rows[0].reidentified == 1
    assert whole.rows[0].ssim > 0.99
    assert len({row.accuracy for row in whole.rows}) == 1  # nothing was changed on the way
    assert len({row.fvu_of_class_mean for row in whole.rows}) == 1


def test_an_attack_that_learns_nothing_scores_one(victim, some):
    (row,) = scan(victim, some(60), some(20, seed=1), ["head"], inverter=Guess()).rows
    assert row.fvu == pytest.approx(1.0)


def test_defenses_act_on_what_is_measured(victim, some, whole):
    noisy = scan(victim, some(160), some(40, seed=1), FEW[:1], defenses=[GaussianNoise(relative=3.0)], seed=2)
    assert noisy.rows[0].fvu > 5 * whole.rows[0].fvu
    masked = scan(victim, some(160), some(40, seed=1), FEW[:1], defenses=[MaskChannels(1.0)])
    assert masked.rows[0].fvu == pytest.approx(1.0, abs=0.1)
    assert masked.rows[0].accuracy == pytest.approx(0.25)  # the cloud sees nothing
    assert masked.defenses == ("MaskChannels(fraction=1.0, seed=0)",)


def test_groups_that_fit_into_memory_give_the_same(victim, some, whole):
    small = scan(victim, some(160), some(40, seed=1), FEW, seed=2, in_memory=200 * 2 * 400)
    assert [row.fvu for row in small.rows] == [row.fvu for row in whole.rows]


def test_a_refusal_is_a_row_and_the_others_go_on(victim, some):
    @dataclasses.dataclass(frozen=True)
    class Picky:
        def __call__(self, features, images, /, *, epochs, seed):
            if features.ndim == 2:
                raise Inapplicable("vectors are not for me")
            if features.shape[1:] == (8, 2, 2):
                return lambda sent: torch.full((len(sent), 1, 8, 8), float("nan"))
            return RidgeInverter()(features, images, epochs=epochs, seed=seed)

    found = scan(victim, some(60), some(20, seed=1), FEW, inverter=Picky())
    assert [row.refusal for row in found.rows] == [
        "",
        "",
        "the decoder diverged: its images hold NaN",
        "vectors are not for me",
    ]
    assert math.isnan(found.rows[3].fvu)
    assert set(found.kinks) == {"features.pool2", "head"}


def test_a_scan_goes_on_where_it_stopped(victim, some, whole):
    new = []
    known = {row.cut: row for row in whole.rows[:3]}
    again = scan(
        victim, some(160), some(40, seed=1), FEW, seed=2, known=known, on_cut=lambda row, made: new.append(row)
    )
    assert [row.cut for row in new] == ["head"]
    assert [row.fvu for row in again.rows] == [row.fvu for row in whole.rows]


def test_cuts_may_be_given_as_listed_and_in_any_order(victim, some):
    listed = [cut for cut in cuts(victim) if cut.name in FEW[2:]]
    found = scan(victim, some(60), Images(some(20, seed=1).images), listed[::-1])
    assert [row.cut for row in found.rows] == FEW[2:]
    assert found.rows[0].accuracy is None
    assert found.rows[0].within is None


def test_bad_input(victim, some):
    with pytest.raises(BadInput, match="at least 50 auxiliary images"):
        scan(victim, some(20), some(20), FEW)
    with pytest.raises(BadInput, match="at least 2 test images"):
        scan(victim, some(60), some(1), FEW)
    with pytest.raises(BadInput, match="at least one cut"):
        scan(victim, some(60), some(20), [])
    lacking = Images(some(60).images, some(60).labels % 3)
    with pytest.raises(BadInput, match="lack class 3"):
        scan(victim, lacking, some(20), FEW)
    with pytest.raises(BadInput, match="one label per image"):
        scan(victim, Images(some(60).images, some(30).labels), some(20), FEW)


def test_envelope_and_kinks():
    assert envelope([0.3, 0.1, float("nan"), 0.5]) == (0.1, 0.1, 0.5, 0.5)
    assert kinks("abcd", [0.3, 0.1, 0.5, 0.5]) == ("a",)
    assert kinks("ab", [0.1, 0.0999]) == ()
    assert envelope([]) == ()


def test_ridge_on_more_images_than_it_takes_sees_all_classes():
    """Two classes one after the other; the first one's features say nothing about the images of the second."""
    rng = torch.Generator().manual_seed(0)
    hidden = torch.rand(400, 4, generator=rng)
    apart = torch.cat([torch.ones(200, 1), torch.zeros(200, 1)]).expand(-1, 4)
    features = torch.cat([hidden * apart, hidden * (1 - apart)], 1)
    images = hidden.view(400, 1, 2, 2)
    decode = RidgeInverter(most=200)(features, images)
    assert float((decode(features[-50:]) - images[-50:]).square().mean()) < 1e-4


class Choking(torch.nn.Module):
    """Gives NaN for a black image and goes on without it."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = torch.nn.Conv2d(1, 2, 3, padding=1), torch.nn.Linear(128, 3)

    def forward(self, x):
        z = self.stem(x) / (x.amax((1, 2, 3), keepdim=True) > 0)
        return self.head(torch.nan_to_num(z, posinf=0.0, neginf=0.0).flatten(1))


@pytest.mark.parametrize("place", range(4))  # among the images that are fitted, and among those held out
def test_features_that_are_not_finite_refuse_wherever_they_are(place):
    images = torch.rand(80, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images[place] = 0
    found = scan(Victim(Choking(), Pixels((1, 8, 8))), Images(images[:60]), Images(images[60:]), ["div", "head"])
    assert [bool(row.refusal) for row in found.rows] == [True, False]
    assert list(found.envelope) == [
        "head"
    ]  # nothing was tried at the other, which must not be offered for what this one keeps


def test_images_without_any_difference_are_refused(victim):
    same = torch.ones(60, 1, 8, 8)
    with pytest.raises(BadInput, match="the test images are all equal"):
        scan(victim, Images(same), Images(same[:9]), ["head"])
