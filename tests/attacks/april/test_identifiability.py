"""What closed-form APRIL predicts before it solves, against what comes back."""

import math
from dataclasses import replace

import pytest
import torch

from leakgauge.attacks import april_closed_form
from leakgauge.attacks.april.identifiability import Identifiability, expected_pixel_error
from leakgauge.attacks.april.ridge import NoisySystem
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


def expected_and_true_error(victim: Victim, defenses: list[GaussianNoise], **options) -> tuple[float, float]:
    image = torch.rand(1, *victim.space.shape, generator=torch.Generator().manual_seed(3))
    seen = share(victim, Gradient(), victim.space.encode(image), torch.tensor([1]), defenses=defenses, seed=1)
    result = april_closed_form(**options)(victim, seen)
    wrong = victim.space.decode(result.x) - image
    return float(dict(result.stated)["expected error of a pixel"].split()[0]), float(wrong.square().mean().sqrt())


@pytest.mark.parametrize("smallest", [1e-4, 1e-6])
def test_one_drowned_direction_of_the_patch_embedding_spoils_every_pixel(smallest):
    """It is one of 48, but its error is many times the range and lies on all pixels of a patch."""
    victim = victim_a(torch.float32)
    weight = victim.model.patch_embed.proj.weight
    left, singular, right = torch.linalg.svd(weight.detach().flatten(1), full_matrices=False)
    singular[-1] *= smallest
    with torch.no_grad():
        weight.copy_((left * singular @ right).view_as(weight))
    expected, error = expected_and_true_error(victim, [])
    assert expected / 2 < error < 2 * expected


@pytest.mark.parametrize(("position_std", "relative"), [(0.3, 0.01), (1.0, 0.03)])
def test_directions_made_of_noise_are_expected_to_be_lost(position_std, relative):
    """Four tokens in a width of 192: noise makes most of ∂l/∂z's small singular values, and turns their vectors to itself."""
    model = ViT(
        in_channels=3, side=8, patch=4, width=192, heads=4, depth=2, residual=False, position_std=position_std,
        class_token=False,
    )  # fmt: skip
    expected, error = expected_and_true_error(Victim(model, Pixels((3, 8, 8))), [GaussianNoise(relative=relative)])
    assert expected / 2 < error < 2 * expected


def small_system(*, tokens: float = 1.0) -> NoisySystem:
    """Two tokens of width three, two values a patch: A = diag(2, 1) over a row of zeros, P = diag(1, 4) over another."""
    position = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    embedding = torch.tensor([[1.0, 0.0], [0.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    base, guess = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    side = torch.zeros(3, 3, dtype=torch.float64)
    side[2, 2] = 0.5 * math.sqrt(5)  # the five entries outside have the root mean square 0.5
    return NoisySystem.of(tokens * position, tokens * side, base, embedding=embedding, guess=guess)


def test_the_formula_on_a_small_system_by_hand():
    system = small_system()
    weights = 3 * torch.eye(3, dtype=torch.float64)
    lean = 0.5**2 * 3**2 / 27  # width · std², where noise of std on all entries makes a right side of 0.5
    lost = {2: lean / 4 * 0.4, 1: lean * 0.4}  # of a singular value of ∂l/∂z: its share of half of the range of 0.8
    off = [math.hypot(0.5 / 2, lost[2]), math.hypot(0.5 / 8, lost[2]), 0.4, math.hypot(0.5 / 4, lost[1])]
    expected = math.sqrt(sum(value**2 for value in off) / 4) / 0.8
    assert expected_pixel_error(system, weights, rounding=1e-7, span=0.8) == pytest.approx(expected)
    dead = small_system(tokens=0.0)
    assert expected_pixel_error(dead, weights, rounding=1e-7, span=0.8) == pytest.approx(0.5)


@pytest.mark.parametrize("ridge", [0.3, 40.0])
def test_the_formula_with_a_ridge_by_hand(ridge):
    """The system above: a ridge divides the noise by less, and takes its share of what sets an image apart from grey instead."""
    system = small_system()
    lean = 0.5**2 * 3**2 / 27
    off = []
    for of_tokens in (2.0, 1.0):
        for of_patches in (1.0, 4.0):
            singular = of_tokens * of_patches
            kept = ridge / (singular**2 + ridge)
            lost = (1 - kept) * min(1, lean / of_tokens**2) * 0.4
            off.append(min(0.4, math.hypot(0.5 * singular / (singular**2 + ridge), lost, kept * 0.8 / math.sqrt(12))))
    expected = math.sqrt(sum(value**2 for value in off) / 4) / 0.8
    weights = 3 * torch.eye(3, dtype=torch.float64)
    assert expected_pixel_error(system, weights, rounding=1e-7, span=0.8, ridge=ridge) == pytest.approx(expected)


@pytest.mark.parametrize("relative", [1e-4, 1e-3, 1e-2, 1e-1])
def test_the_expected_error_is_that_of_the_ridge_solution(relative):
    """Plain and by ridge the errors differ; the ridge's is met within 15 %, the plain one within a factor of two."""
    victim = victim_a(torch.float32)
    found = {
        ridge: expected_and_true_error(victim, [GaussianNoise(relative=relative)], ridge=ridge)
        for ridge in (None, "auto")
    }
    assert found[None][0] / 2 < found[None][1] < 2 * found[None][0]
    assert found["auto"][0] == pytest.approx(found["auto"][1], rel=0.15)
    assert found["auto"][0] < 1.1 * found[None][0]
    assert (found["auto"][0] < 0.8 * found[None][0]) == (relative >= 0.001)  # where the ridge changes the picture


def test_a_gradient_of_zero_is_predicted_to_give_nothing():
    victim = victim_a(torch.float64)
    with torch.no_grad():
        victim.model.head.weight.zero_()
    seen = share(victim, Gradient(), torch.rand(1, *SHAPE, dtype=torch.float64), torch.tensor([1]))
    for ridge in (None, "auto"):
        result = april_closed_form(ridge=ridge)(victim, seen)
        assert "rank 0 of 36: tokens are mixed" in dict(result.stated)["predicted"]
