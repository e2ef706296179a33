"""Large images are judged at a smaller size too: grain on every pixel does not hide a picture."""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.audit.scoring import Scores, score_images, trivial_baseline
from leakgauge.audit.verdict import REDUCED, Way, judge
from leakgauge.data.embedded import photographs
from leakgauge.measures.image import downscale

GOOD = {"ssim": 0.2, "psnr": 14.0, "reid": 1.0, "ssim_reduced": 0.9, "psnr_reduced": 25.0}
NULL = {"ssim": 0.0, "psnr": 8.0, "reid": 90.0, "ssim_reduced": 0.1, "psnr_reduced": 11.0}
BASELINE = {"ssim": 0.4, "psnr": 17.0, "reid": 1.0, "ssim_reduced": 0.3, "psnr_reduced": 17.0}


def scores(values: Mapping[str, float | None], count: int = 1) -> Scores:
    columns = {name: None if value is None else (value,) * count for name, value in values.items()}
    return Scores(mse=(0.1,) * count, **columns)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((64, 64), None), ((28, 28), None), ((65, 65), (32, 32)), ((224, 224), (56, 56)), ((100, 300), (20, 60))],
)
def test_images_are_averaged_down_to_at_most_64_pixels_a_side(shape, expected):
    images = torch.rand(2, 3, *shape)
    found = downscale(images)
    assert (None if found is None else tuple(found.shape[-2:])) == expected
    if found is not None and shape == (224, 224):
        torch.testing.assert_close(found, F.avg_pool2d(images, 4))


def test_a_grainy_picture_is_reconstructed_at_reduced_size():
    verdict = judge(scores(GOOD), scores(NULL), scores(BASELINE))
    assert (verdict.outcome, verdict.reconstructed, verdict.at_reduced_size) == ("feasible", 1, 1)


@pytest.mark.parametrize("check", REDUCED, ids=str)
def test_every_check_at_reduced_size_counts(check):
    attack, null, base = dict(GOOD), dict(NULL), dict(BASELINE)
    if check.metric == "reid":
        attack["reid"] = 2.0
    elif check.above == "zero":
        attack[check.metric] = check.margin - 1e-6
    else:
        {"null": null, "baseline": base}[check.above][check.metric] = attack[check.metric] - check.margin + 1e-6
    verdict = judge(scores(attack), scores(null), scores(base))
    assert verdict.outcome == "partial"
    assert verdict.at_reduced_size == 0


def test_what_was_not_measured_at_reduced_size_is_judged_as_before():
    """Small images, and records of older versions."""
    for side in (GOOD, NULL, BASELINE):
        values = [{**one, "ssim_reduced": None} if one is side else one for one in (GOOD, NULL, BASELINE)]
        assert judge(*[scores(one) for one in values]).outcome == "partial"
    assert judge(scores(GOOD), scores(NULL), scores(BASELINE), to_see=()).outcome == "partial"


def test_without_a_pool_nothing_need_be_identified():
    attack, null, base = ({**one, "reid": None} for one in (GOOD, NULL, BASELINE))
    assert judge(scores(attack), scores(null), scores(base)).outcome == "feasible"


def test_structure_alone_at_reduced_size_is_a_glimpse():
    dim = {**GOOD, "psnr": 7.0, "psnr_reduced": 7.0}
    verdict = judge(scores(dim), scores(NULL), scores(BASELINE))
    assert verdict.outcome == "partial"
    assert verdict.glimpsed == {Way.STRUCTURE: 1}


def grainy(images: Tensor) -> Tensor:
    return (images + 0.25 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)


def test_grain_on_photographs_and_nothing_but_grain():
    truths = photographs(224)[:4]
    null = torch.rand(truths.shape, generator=torch.Generator().manual_seed(1))
    attack, blind = score_images(grainy(truths), truths), score_images(null, truths)
    assert max(attack.ssim) < 0.38
    assert attack.ssim_reduced is not None
    assert min(attack.ssim_reduced) > 0.4
    base = trivial_baseline(truths)
    assert judge(attack, blind, base).outcome == "feasible"
    assert judge(blind, blind, base).outcome == "inconclusive"
    other = torch.cat([truths[1:], truths[:1]])
    for guess, truth in zip(
        other, truths, strict=True
    ):  # one by one, since a batch would be paired with the right ones
        wrong, alone = score_images(guess[None], truth[None]), score_images(null[:1], truth[None])
        assert judge(wrong, alone, trivial_baseline(truth[None])).outcome != "feasible"


def test_small_images_have_no_reduced_size():
    found = score_images(torch.rand(2, 1, 28, 28), torch.rand(2, 1, 28, 28))
    assert found.ssim_reduced is None
    assert trivial_baseline(torch.rand(2, 1, 28, 28)).psnr_reduced is None
