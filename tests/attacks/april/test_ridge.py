"""The noisy linear system: ridge against a reference, bounds against draws of noise, and the attack under noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakgauge.attacks import april_closed_form
from leakgauge.attacks.april.closed_form import tokens_from_attention
from leakgauge.attacks.april.ridge import (
    NoisySystem,
    error_bound,
    noise_bound,
    ridge_by_discrepancy,
    ridge_from_noise,
    std_from_outside,
)
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.image import psnr
from leakgauge.models.vit import ViT

TOKENS, WIDTH = 6, 10


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Case:
    """A truth z, a gradient of the positions whose singular values fall to ``smallest``, weights, and noise on both."""

    def __init__(self, *, std: float, seed: int, smallest: float = 0.1, tokens: int = TOKENS, width: int = WIDTH):
        self.z, self.prior = normal(tokens, width, seed=seed), normal(tokens, width, seed=seed + 1000) * 0.1
        left, _, right = torch.linalg.svd(normal(tokens, width, seed=seed + 2000), full_matrices=False)
        falling = torch.logspace(0, math.log10(smallest), min(tokens, width), dtype=torch.float64)
        self.position = left @ torch.diag(falling) @ right
        self.weights = normal(3 * width, width, seed=seed + 3000) / math.sqrt(width)
        f = self.weights.T @ normal(3 * width, width, seed=seed + 4000) * std
        e = normal(tokens, width, seed=seed + 5000) * std
        self.noise = f - e.T @ self.z
        self.system = NoisySystem.of(self.position + e, self.position.T @ self.z + f, self.prior)

    def error(self, ridge: float) -> float:
        return float((self.system.solve(ridge) - self.z).norm())


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-4, 10), st.integers(0, 99))
def test_ridge_solves_the_penalised_system(ridge, seed):
    """Against numpy's least squares on the system with √λ·I below it."""
    case = Case(std=0.1, seed=seed)
    system = case.system
    a = (system.left * system.singular[:, 0]) @ system.right.T
    below = math.sqrt(ridge) * np.eye(TOKENS)
    stacked, side = np.vstack([a, below]), np.vstack([system.side, np.zeros((TOKENS, WIDTH))])
    expected = case.prior.numpy() + np.linalg.lstsq(stacked, side, rcond=None)[0]
    np.testing.assert_allclose(system.solve(ridge), expected, rtol=1e-8, atol=1e-9)
    residual = np.linalg.norm(a.numpy() @ (expected - case.prior.numpy()) - system.side.numpy())
    assert system.residual(ridge) == pytest.approx(residual, rel=1e-8)


@pytest.mark.parametrize(("tokens", "width"), [(6, 10), (6, 6)])
def test_a_vanishing_ridge_is_plain_least_squares(tokens, width):
    case = Case(std=0.01, seed=3, tokens=tokens, width=width)
    position = ((case.system.left * case.system.singular[:, 0]) @ case.system.right.T).T
    plain = tokens_from_attention(position, case.system.side + position.T @ case.prior)
    for ridge in (0.0, 1e-14):
        torch.testing.assert_close(case.system.solve(ridge), plain, rtol=1e-6, atol=1e-6)


def test_a_large_ridge_gives_the_guess_made_before():
    case = Case(std=0.01, seed=3)
    torch.testing.assert_close(case.system.solve(1e12), case.prior, atol=1e-9, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999), std=st.sampled_from([0.0, 1e-6, 1e-3, 1e-1, 1.0]),
    ridge=st.sampled_from([0.0, 1e-8, 1e-3, 1.0]), smallest=st.sampled_from([1.0, 1e-2, 1e-5]),
    tokens=st.sampled_from([3, 10, 12]),
)  # fmt: skip
def test_the_rigorous_bound_holds_for_every_noise(seed, std, ridge, smallest, tokens):
    """Given the true size of the noise and of z − z₀; also where the width does not reach all tokens."""
    case = Case(std=std, seed=seed, smallest=smallest, tokens=tokens)
    bound = error_bound(
        case.system, ridge, noise=float(case.noise.norm()), distance=float((case.z - case.prior).norm())
    )
    assert case.error(ridge) <= bound * (1 + 1e-6) + 1e-9


def test_the_rigorous_bound_is_reached():
    """Noise along the weakest direction, and z − z₀ along it: both parts of the bound are attained."""
    case = Case(std=0.0, seed=0)
    weakest = case.system.left[:, -1:]
    pushed = NoisySystem.of(case.position, case.position.T @ case.z + weakest @ normal(1, WIDTH), case.prior)
    size = float((weakest @ normal(1, WIDTH)).norm())
    found = float((pushed.solve(0.0) - case.z).norm())
    assert found == pytest.approx(error_bound(pushed, 0.0, noise=size, distance=1.0), rel=1e-6)
    along = case.prior + case.system.right[:, -1:] @ normal(1, WIDTH)
    exact = NoisySystem.of(case.position, case.position.T @ along, case.prior)
    distance = float((along - case.prior).norm())
    found = float((exact.solve(0.01) - along).norm())
    assert found == pytest.approx(error_bound(exact, 0.01, noise=0.0, distance=distance), rel=1e-6)


def test_the_size_of_the_noise_is_bounded_and_not_by_far_too_much():
    sizes, bounds = [], []
    for seed in range(200):
        case = Case(std=0.3, seed=seed)
        sizes.append(float(case.noise.norm()))
        bounds.append(noise_bound(case.weights, float(case.z.norm()), std=0.3, width=WIDTH))
    assert all(size <= bound for size, bound in zip(sizes, bounds, strict=True))
    assert np.mean(bounds) < 2.2 * np.mean(sizes)


VALUES = 4


def pixels_case(std: float, seed: int, *, values: int = VALUES) -> tuple[NoisySystem, Tensor, Tensor]:
    """A system whose unknown are pixels behind an embedding, with noise on both sides; the true pixels; the noise R."""
    embedding, truth = normal(WIDTH, values, seed=seed + 6), normal(TOKENS, values, seed=seed + 7)
    guess, offset = 0.1 * normal(TOKENS, values, seed=seed + 8), normal(TOKENS, WIDTH, seed=seed + 9)
    z = offset + truth @ embedding.T
    position = normal(TOKENS, WIDTH, seed=seed + 10)
    f, e = std * normal(WIDTH, WIDTH, seed=seed + 11), std * normal(TOKENS, WIDTH, seed=seed + 12)
    base = offset + guess @ embedding.T
    system = NoisySystem.of(position + e, position.T @ z + f, base, embedding=embedding, guess=guess)
    return system, truth, f - e.T @ z


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-4, 10), st.integers(0, 99))
def test_pixels_by_ridge_solve_the_penalised_system(ridge, seed):
    """Against numpy on the Kronecker product of both maps, with √λ·I below it."""
    system, truth, _ = pixels_case(0.1, seed)
    a = (system.left * (system.singular[:, 0] / torch.linalg.svdvals(system.embedding)[0])) @ system.right.T
    both = np.kron(a.numpy(), system.embedding.numpy())
    stacked = np.vstack([both, math.sqrt(ridge) * np.eye(truth.numel())])
    side = np.concatenate([system.side.numpy().ravel(), np.zeros(truth.numel())])
    expected = system.guess.numpy() + np.linalg.lstsq(stacked, side, rcond=None)[0].reshape(truth.shape)
    np.testing.assert_allclose(system.solve(ridge), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("values", [4, 10, 12])
@pytest.mark.parametrize("ridge", [0.0, 1e-2, 1.0])
@pytest.mark.parametrize("std", [0.0, 1e-3, 1.0])
def test_the_bound_holds_for_pixels(values, ridge, std):
    """Also for an embedding that loses detail (more values than width)."""
    for seed in range(10):
        system, truth, noise = pixels_case(std, 100 * seed, values=values)
        distance = float((truth - system.guess).norm())
        bound = error_bound(system, ridge, noise=float(noise.norm()), distance=distance)
        assert float((system.solve(ridge) - truth).norm()) <= bound * (1 + 1e-6) + 1e-9


def test_pixels_without_noise_are_exact_and_give_their_tokens():
    system, truth, _ = pixels_case(0.0, 5)
    torch.testing.assert_close(system.solve(0.0), truth)
    torch.testing.assert_close(system.tokens(truth) - system.base, (truth - system.guess) @ system.embedding.T)


def test_discrepancy_leaves_as_much_residual_as_there_is_noise():
    case = Case(std=0.05, seed=1)
    ridge = ridge_by_discrepancy(case.system, 3.0)
    assert case.system.residual(ridge) == pytest.approx(3.0, rel=1e-6)
    assert ridge_by_discrepancy(case.system, 0.0) == 0.0
    with pytest.raises(BadInput, match="must not be negative"):
        ridge_by_discrepancy(case.system, -1.0)


@pytest.mark.parametrize("seed", range(10))
def test_ridge_beats_plain_least_squares_on_an_ill_conditioned_noisy_system(seed):
    case = Case(std=1e-3, seed=seed, smallest=1e-5)
    ridge = ridge_from_noise(case.system, case.weights, 1e-3)
    assert case.error(ridge) < 0.9 * case.error(0.0)


def test_without_noise_the_chosen_ridge_is_none():
    case = Case(std=0.0, seed=2)
    assert ridge_from_noise(case.system, case.weights, 0.0) == 0.0


def test_undeclared_noise_is_estimated_where_the_width_leaves_room():
    case = Case(std=1e-3, seed=2, tokens=16, width=64)
    assert std_from_outside(case.system, case.weights) == pytest.approx(1e-3, rel=0.2)
    with pytest.raises(Inapplicable, match="declare it"):
        std_from_outside(Case(std=1e-3, seed=2, tokens=10).system, case.weights)


def quality(relative: float, *, class_token: bool = False, declare: bool = False, **options) -> tuple[float, tuple]:
    space = Pixels((1, 12, 12), mean=(0.4,), std=(0.3,))
    model = ViT(
        side=12, patch=3, width=32, heads=2, depth=2, classes=5, residual=False, position_std=1.0,
        class_token=class_token,
    )  # fmt: skip
    victim = Victim(model.double(), space)
    image = torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0)).double()
    x, y = space.encode(image), torch.tensor([1])
    noise = GaussianNoise(relative=relative)
    if declare:
        options["noise"] = noise.deviation(share(victim, Gradient(), x, y).signal)
    seen = share(victim, Gradient(), x, y, defenses=[noise])
    result = april_closed_form(**options)(victim, seen)
    return float(psnr(space.decode(result.x), image)), result.notes


@pytest.mark.parametrize("class_token", [False, True])
def test_the_attack_gains_by_its_ridge_in_noise_and_loses_nothing_without(class_token):
    exact, _ = quality(0.0, class_token=class_token, ridge="auto", declare=True)
    assert exact > 100
    plain, _ = quality(0.03, class_token=class_token)
    ridge, notes = quality(0.03, class_token=class_token, ridge="auto", declare=True)
    assert ridge > plain + 1
    assert any("(declared)" in note for note in notes)
    assert any("root mean square error of the pixels at most" in note for note in notes)
    _, notes = quality(0.03, class_token=class_token, ridge="auto")
    assert any("(estimated)" in note for note in notes)
    assert not any("at most" in note for note in notes)


def test_a_given_ridge_of_zero_is_the_plain_solution():
    assert quality(0.01, ridge=0.0)[0] == pytest.approx(quality(0.01)[0], abs=1e-6)


@pytest.mark.parametrize(
    "options", [{"ridge": -1.0}, {"ridge": "much"}, {"noise": 0.1}, {"ridge": "auto", "noise": -1}]
)
def test_the_attack_refuses(options):
    with pytest.raises(BadInput, match=r"non-negative|as a number"):
        april_closed_form(**options)


def test_the_bound_is_told_as_a_share_of_the_range_of_pixels():
    """A ridge that leaves nothing but grey is off by at most half of it, whatever the model's scale."""
    space = Pixels((1, 8, 8), bounds=(0.0, 255.0), mean=(100.0,), std=(50.0,))
    model = ViT(side=8, patch=4, width=24, heads=2, depth=2, residual=False, position_std=1.0, classes=5).double()
    victim = Victim(model, space)
    seen = share(victim, Gradient(), space.encode(255 * torch.rand(1, 1, 8, 8).double()), torch.tensor([1]))
    notes = april_closed_form(ridge=1e12, noise=0.0)(victim, seen).notes
    assert "root mean square error of the pixels at most 5.0e-01 of their range (for 98 % of such noise)" in notes


@pytest.mark.parametrize("options", [{"ridge": True}, {"ridge": math.inf}, {"ridge": 1.0, "noise": "much"}])
def test_options_that_are_no_sizes_are_refused(options):
    with pytest.raises(BadInput, match=r"non-negative|as a number"):
        april_closed_form(**options)
