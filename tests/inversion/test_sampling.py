"""Sampling from a diffusion prior, guided by an objective; the prior here is a Gaussian, for which everything is known."""

import itertools
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from leakgauge.channels import Features, FedAvg, Gradient
from leakgauge.core import Pixels, share
from leakgauge.defenses import Prune
from leakgauge.errors import BadInput
from leakgauge.inversion import (
    Annealing,
    CloudPrediction,
    Cosine,
    FixedLength,
    Halving,
    Matching,
    RelativeL2,
    Sampling,
    Spherical,
)
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.sampling import Guided, from_space, levels, to_space
from leakgauge.inversion.solvers import Moving
from leakgauge.testing import tiny_case


@dataclass(frozen=True)
class Normal:
    """The exact denoiser of pixels that are independently N(mean, deviation²)."""

    mean: float = 0.2
    deviation: float = 0.3
    classes: int = 0

    def __call__(self, x, level, label=None, /):
        a2 = level.square().view(-1, 1, 1, 1)
        image, variance = (1 - a2).sqrt(), self.deviation**2
        return self.mean + image * variance / ((1 - a2) * variance + a2) * (x - image * self.mean)


def nothing(x, logits, rows):
    return x.new_zeros(len(x))


def moving(start, draws=None):
    return Moving(x=start, losses=nothing, space=Pixels(start.shape[2:]), draws=draws or Draws.of(len(start)))


@pytest.mark.parametrize("guidance", [FixedLength(), FixedLength(through=False), Spherical(0.5)], ids=repr)
def test_without_an_objective_it_draws_from_the_prior(guidance):
    start = torch.zeros(4, 2, 1, 20, 20)
    mover = Sampling(Normal(), guidance, steps=200).begin(moving(start))
    for number in range(200):
        mover(number)
    drawn = mover.x
    assert float(drawn.mean()) == pytest.approx(0.2, abs=0.02)
    assert float(drawn.std()) == pytest.approx(0.3, rel=0.05)


def guided(now=0.8, after=0.6, rows=3):
    rng = torch.Generator().manual_seed(0)
    x, clean, slope, noise = (torch.randn(rows, 2, 1, 5, 5, generator=rng) for _ in range(4))
    return Guided(x, clean, slope, noise, torch.tensor(now), torch.tensor(after))


def test_the_spherical_step_ends_on_the_sphere_of_the_sampler():
    """μ by the posterior of DDPM (Ho et al. 2020, Eq. 7) and σ by DDIM with η = 1, of the clipped image, as in the authors' code."""
    at = guided()
    before, after = 1 - 0.8**2, 1 - 0.6**2  # ᾱ_t and ᾱ_{t−1}
    alpha = before / after
    image = at.clean.clamp(-1, 1)
    assert not torch.equal(image, at.clean)
    mean = math.sqrt(after) * (1 - alpha) / (1 - before) * image
    mean = mean + math.sqrt(alpha) * (1 - after) / (1 - before) * at.x
    sigma = math.sqrt((1 - after) / (1 - before)) * math.sqrt(1 - before / after)
    radius = sigma * math.sqrt(50)
    unit = at.slope / at.slope.flatten(1).norm(dim=1).view(3, 1, 1, 1, 1)
    for mixing in (0.2, 1.0):
        moved = Spherical(mixing)(at) - mean
        assert torch.allclose(moved.flatten(1).norm(dim=1), torch.full((3,), radius), rtol=1e-5)
    assert torch.allclose(Spherical(1.0)(at), mean - radius * unit, atol=1e-5)
    mixed = sigma * at.noise + 0.2 * (-radius * unit - sigma * at.noise)
    mixed = mixed / mixed.flatten(1).norm(dim=1).view(3, 1, 1, 1, 1)
    assert torch.allclose(Spherical(0.2)(at), mean + radius * mixed, atol=1e-5)
    last = replace(at, after=torch.tensor(0.0))  # no noise is left there: the image itself
    assert torch.allclose(Spherical(0.2)(last), image, atol=1e-6)


def test_the_step_of_fixed_length_moves_the_denoised_image_by_that_length():
    at = guided(after=0.0)
    moved = FixedLength(0.7)(at) - at.clean
    assert torch.allclose(moved.flatten(1).norm(dim=1), torch.full((3,), 0.7), rtol=1e-5)
    assert (moved * at.slope).flatten(1).sum(1).max() < 0


def test_levels_fall_from_noise_to_nothing():
    path = levels(10, start=0.5)
    assert path[0] == pytest.approx(0.5)
    assert path[-1] == 0
    assert all(a > b for a, b in itertools.pairwise(path))


def test_images_and_model_space_are_converted_back_and_forth():
    space = Pixels((3, 4, 4), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    images = torch.rand(2, 5, 3, 4, 4) * 2 - 1
    assert torch.allclose(from_space(to_space(images, space, torch.float32), space), images, atol=1e-5)
    beyond = torch.full((1, 1, 3, 4, 4), 3.0, requires_grad=True)
    made = to_space(beyond, space, torch.float32)
    assert torch.allclose(space.decode(made), torch.ones(1))
    assert torch.autograd.grad(made.sum(), beyond)[0].min() > 0  # clipping does not stop the gradient


SOLVERS = [
    Sampling(Normal(-0.4, 0.5), FixedLength(1.0), steps=30),
    Sampling(Normal(-0.4, 0.5), FixedLength(1.0, through=False), steps=30),
    Sampling(Normal(-0.4, 0.5), Spherical(0.5), steps=30),
    Annealing(Normal(-0.4, 0.5), rounds=8, moves=5, reach=0.2),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: repr(s)[:40])
@pytest.mark.parametrize("kind", ["gradient", "pruned", "steps", "features"])
def test_guidance_lowers_the_objective_on_every_channel(solver, kind):
    victim, x, y = tiny_case("cnn")
    channel = {"steps": FedAvg(steps=2, lr=0.1), "features": Features("features.2")}.get(kind, Gradient())
    seen = share(victim, channel, x, y, defenses=(Prune(0.5),) if kind == "pruned" else ())
    of_features = kind == "features"
    attack = Matching(RelativeL2() if of_features else Cosine(), solver=solver, restarts=2)
    attack = Matching(attack.objective, CloudPrediction(), solver=solver, restarts=2) if of_features else attack
    found = attack(victim, seen, seed=1)
    null = attack.blind()(victim, seen, seed=1)
    assert found.loss < 0.7 * float(found.trace.losses[0].min())
    shown = victim.space.decode(found.x)
    assert torch.allclose(victim.space.encode(shown), found.x, atol=1e-5)  # a valid image
    assert not torch.equal(found.x, null.x)
    assert torch.equal(found.x, attack(victim, seen, seed=1).x)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: repr(s)[:40])
def test_many_observations_in_one_batch_are_attacked_as_each_alone(solver):
    victim, x, y = tiny_case("cnn", count=2)
    seen = [share(victim, Gradient(), x[i : i + 1], y[i : i + 1]) for i in range(2)]
    attack = Matching(Cosine(), solver=solver, restarts=2)
    together = attack.many(victim, seen, seed=0)
    for one, alone in zip(together, (attack(victim, s, seed=0) for s in seen), strict=True):
        assert torch.allclose(one.x, alone.x, atol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: repr(s)[:40])
def test_restarts_may_be_halved_on_the_way(solver):
    victim, x, y = tiny_case("cnn")
    seen = share(victim, Gradient(), x, y)
    found = Matching(Cosine(), solver=solver, restarts=4, halving=Halving())(victim, seen)
    assert found.losses.isfinite().all()
    assert found.loss == float(found.losses.min())


def test_classes_reach_the_prior():
    asked = []

    @dataclass(frozen=True)
    class Listening(Normal):
        classes: int = 4

        def __call__(self, x, level, label=None, /):
            asked.append(label)
            return super().__call__(x, level, label)

    victim, x, y = tiny_case("cnn", count=2)
    seen = share(victim, Gradient(), x, y)
    for conditional in (True, False):
        asked.clear()
        Matching(Cosine(), solver=Annealing(Listening(), rounds=2, moves=2, conditional=conditional))(victim, seen)
        assert (asked[0] is not None) == conditional
        assert not conditional or sorted(asked[0].tolist()) == sorted(y.tolist())


def test_what_cannot_be_is_refused():
    victim, x, y = tiny_case("cnn")
    with pytest.raises(BadInput, match="needs a diffusion prior"):
        Matching(Cosine(), solver=Sampling())(victim, share(victim, Gradient(), x, y))
    for wrong in (lambda: Spherical(1.5), lambda: FixedLength(-1.0), lambda: Sampling(steps=0)):
        with pytest.raises(BadInput):
            wrong()


def test_the_noise_of_a_restart_does_not_depend_on_the_others():
    like = torch.zeros(3, 1, 1, 4, 4)
    every = Draws.of(3).normal(-1, like)
    assert torch.equal(Draws.of(3).take(slice(1, 2)).normal(-1, like[:1]), every[1:2])


def test_the_worst_restarts_give_way_to_copies_of_the_best():
    """Each observation on its own: the best half of its restarts survives, twice."""
    start = torch.zeros(8, 1, 1, 4, 4)
    solver = Annealing(Normal(), rounds=2, moves=1, select=0.5)
    mover = solver.begin(moving(start, Draws.of(4, observations=2)))
    before = mover.x.clone()
    mover.scores.copy_(torch.tensor([0.3, 0.1, 0.4, 0.2, 0.0, 0.9, 0.8, 0.1]))
    mover._select()
    kept = [int((before[:4] == one).flatten(1).all(1).nonzero()[0]) for one in mover.x[:4]]
    assert sorted(kept) == [1, 1, 3, 3]
    kept = [int((before[4:] == one).flatten(1).all(1).nonzero()[0]) for one in mover.x[4:]]
    assert sorted(kept) == [0, 0, 3, 3]


def test_a_share_above_a_half_cannot_give_way():
    with pytest.raises(BadInput, match=r"between 0 and 0\.5, got 0\.7"):
        Annealing(select=0.7)


def test_restarts_compete_in_groups():
    """Of two groups the worse one keeps its own best, although all of the other are better."""
    start = torch.zeros(8, 1, 1, 4, 4)
    mover = Annealing(Normal(), rounds=2, moves=1, select=0.5, group=4).begin(moving(start))
    before = mover.x.clone()
    mover.scores.copy_(torch.tensor([0.3, 0.1, 0.4, 0.2, 0.9, 0.8, 0.7, 0.6]))
    mover._select()
    kept = [int((before == one).flatten(1).all(1).nonzero()[0]) for one in mover.x]
    assert sorted(kept[:4]) == [1, 1, 3, 3]
    assert sorted(kept[4:]) == [6, 6, 7, 7]


def test_a_piece_of_an_observation_is_a_group_of_its_own():
    """Where memory cuts the rows of an observation in two, as many rows of it as are there compete."""
    rows = Draws.of(6, observations=2).take(slice(0, 8))
    assert rows.observation().tolist() == [0] * 6 + [1] * 2
    mover = Annealing(Normal(), rounds=2, moves=1, select=0.5, group=4).begin(moving(torch.zeros(8, 1, 1, 4, 4), rows))
    assert [len(own) for own in mover._groups()] == [4, 2, 2]


class Wide:
    """A denoiser that can only make images of one value."""

    classes = 0

    def __call__(self, x, level, label=None, /):
        return x.mean((1, 2, 3), keepdim=True).expand_as(x)


@pytest.mark.parametrize("refine", [0, 100])
def test_refining_finds_what_the_prior_cannot_make(refine):
    target = torch.linspace(-0.8, 0.8, 16).view(1, 1, 4, 4)
    judged: list[tuple[Tensor, Tensor]] = []

    def losses(x, logits, rows):
        each = (x * 2 - 1 - target).square().flatten(1).mean(1)
        judged.append((x.detach().clone(), torch.as_tensor(range(8))[rows]))
        return each

    solver = Annealing(Wide(), rounds=3, moves=5, refine=refine)
    start = torch.zeros(8, 1, 1, 4, 4)
    given = Moving(x=start, losses=losses, space=Pixels((1, 4, 4)), draws=Draws.of(8))
    mover = solver.begin(given)
    assert solver.steps == 15 + refine
    for number in range(solver.steps):
        mover(number)
    mover.judge()
    last, rows = judged[-1]
    assert len(last) == len(rows) == (2 if refine else 8)  # the best quarter
    error = float((last * 2 - 1 - target).abs().max())
    assert (error < 0.05) if refine else (error > 0.5)


def test_refining_knows_its_rows_after_some_were_dropped():
    target = torch.tensor([0.9, 0.5, 0.1, 0.3, 0.7, 0.2, 0.8, 0.6]).view(8, 1, 1, 1, 1)  # of each row its own
    wanted: list[Tensor] = []

    def losses(x, logits, rows):
        wanted.append(target[rows].flatten())
        return (x - target[rows]).square().flatten(1).mean(1)

    solver = Annealing(Wide(), rounds=1, moves=2, refine=60, group=4)
    given = Moving(x=torch.zeros(8, 1, 1, 4, 4), losses=losses, space=Pixels((1, 4, 4)), draws=Draws.of(8))
    mover = solver.begin(given)
    mover(0)
    mover.keep(4, torch.tensor([9.0, 9.0, 9.0, 9.0, 1.0, 2.0, 3.0, 4.0]))  # rows 4 to 7
    for number in range(1, solver.steps):
        mover(number)
    mover.judge()
    assert len(wanted[-1]) == 1
    assert float(wanted[-1]) in [pytest.approx(v) for v in (0.7, 0.2, 0.8, 0.6)]
    image = (mover.x.mean() + 1) / 2
    assert float(image) == pytest.approx(float(wanted[-1]), abs=0.03)
