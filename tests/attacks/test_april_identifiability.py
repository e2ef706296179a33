"""What closed-form APRIL predicts before it solves, against what comes back."""

import math
from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import april_closed_form
from leakgauge.attacks.april_identifiability import Identifiability, expected_pixel_error
from leakgauge.attacks.april_ridge import NoisySystem
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import GaussianNoise, Quantize
from leakgauge.models.vit import ViT

SHAPE = (3, 24, 24)


def victim_a(dtype: torch.dtype, *, position_std: float = 1.0) -> Victim:
    model = ViT(
        in_channels=3, side=24, patch=4, width=120, heads=3, depth=2, classes=5, residual=False,
        position_std=position_std, class_token=False,
    )  # fmt: skip
    return Victim(model.to(dtype), Pixels(SHAPE, mean=(0.4,), std=(0.3,)))


def test_what_is_predicted_follows_from_the_numbers():
    fine = Identifiability(tokens=4, width=8, patch_values=8, rank=4, condition=10.0, rounding=1e-7, patch_rank=8)
    assert fine.lost() == ()
    for change in (
        {"tokens": 9, "rank": 8}, {"rank": 3}, {"patch_values": 9}, {"condition": 2e6}, {"patch_rank": 7}, {"unseen": 1},
        {"samples": 2}, {"pixel_error": 0.02}, {"pixel_error": 0.2, "rank": 3},
    ):  # fmt: skip
        assert len(replace(fine, **change).lost()) == 1, change
    assert replace(fine, condition=0.9e6).lost() == ()
    assert replace(fine, condition=2e6, rank=3, pixel_error=0.001).lost() == (), "what was measured goes before"
    assert dict(replace(fine, pixel_error=0.002).rows())["expected error of a pixel"] == "2.0e-03 of its range"


@pytest.mark.parametrize(
    ("dtype", "position_std", "channel", "defenses"),
    [
        (torch.float64, 1.0, Gradient(), []),
        (torch.float32, 1.0, Gradient(), []),
        (torch.float32, 0.02, Gradient(), []),
        (torch.bfloat16, 1.0, Gradient(), []),
        (torch.float16, 1.0, Gradient(), []),
        (torch.float32, 1.0, FedAvg(steps=1, lr=0.001), []),
        (torch.float32, 1.0, Gradient(), [GaussianNoise(relative=1e-5)]),
        (torch.float32, 1.0, Gradient(), [GaussianNoise(relative=1e-4)]),
        (torch.float32, 1.0, Gradient(), [GaussianNoise(relative=1e-1)]),
        (torch.float32, 1.0, Gradient(), [Quantize(8)]),
    ],
)
def test_the_expected_error_is_met_within_a_factor_of_three(dtype, position_std, channel, defenses):
    """From rounding in any type, from a defense or from a weight update, none of which the attack is told of."""
    victim = victim_a(dtype, position_std=position_std)
    image = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(3)).to(dtype)
    seen = share(victim, channel, victim.space.encode(image), torch.tensor([1]), defenses=defenses, seed=1)
    result = april_closed_form()(victim, seen)
    wrong = victim.space.decode(result.x.double()) - image.double()
    expected = float(dict(result.stated)["expected error of a pixel"].split()[0])
    error = float(wrong.square().mean().sqrt())
    if expected > 1e-6:  # below, the picture itself is rounded
        assert expected / 3 < error < 3 * expected
    assert ("everything is recovered" in result.notes[0]) == (expected <= 0.01)


def test_the_formula_on_a_small_system_by_hand():
    """Two tokens of width three, two values a patch: A = diag(2, 1) over a row of zeros, P = diag(1, 4) over another."""
    position = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    embedding = torch.tensor([[1.0, 0.0], [0.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    base, guess = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    side = torch.zeros(3, 3, dtype=torch.float64)
    side[2, 2] = 0.5 * math.sqrt(5)  # the five entries outside have the root mean square 0.5
    system = NoisySystem.of(position, side, base, embedding=embedding, guess=guess)
    off = [0.5 / 2, 0.5 / 8, 0.4, 0.5 / 4]  # 0.5/1 is more than half of the range of 0.8
    expected = math.sqrt(sum(value**2 for value in off) / 4) / 0.8
    assert expected_pixel_error(system, rounding=1e-7, span=0.8) == pytest.approx(expected)
    dead = NoisySystem.of(0 * position, 0 * side, base, embedding=embedding, guess=guess)
    assert expected_pixel_error(dead, rounding=1e-7, span=0.8) == pytest.approx(0.5)


def test_a_gradient_of_zero_is_predicted_to_give_nothing():
    victim = victim_a(torch.float64)
    with torch.no_grad():
        victim.model.head.weight.zero_()
    seen = share(victim, Gradient(), torch.rand(1, *SHAPE, dtype=torch.float64), torch.tensor([1]))
    for ridge in (None, "auto"):
        result = april_closed_form(ridge=ridge)(victim, seen)
        assert "rank 0 of 36: tokens are mixed" in dict(result.stated)["predicted"]
