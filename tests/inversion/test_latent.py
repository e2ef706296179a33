"""A search among what a generator can make: against closed solutions, restart by restart, and on among pixels."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from leakgauge.core import Pixels
from leakgauge.errors import BadInput
from leakgauge.inversion import Adam, CosineDecay, Descent, Latent
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.solvers import Moving

SPACE = Pixels((1, 2, 3), mean=(0.25,), std=(0.5,))
SIZE = 4


@dataclass(frozen=True)
class Linear:
    """Images that lie in a plane."""

    weight: Tensor
    middle: Tensor

    def __call__(self, z: Tensor, /) -> Tensor:
        return (self.middle + z @ self.weight).view(len(z), *SPACE.shape)


@pytest.fixture
def linear() -> Linear:
    rng = torch.Generator().manual_seed(0)
    return Linear(torch.randn(SIZE, 6, generator=rng).double(), torch.rand(6, generator=rng).double())


@pytest.fixture
def target() -> Tensor:
    """(rows, batch, ...) in model space; no row is an image that the generator can make."""
    return torch.randn(2, 3, *SPACE.shape, generator=torch.Generator().manual_seed(1)).double()


def searched(solver: Latent, target: Tensor, *, draws: Draws | None = None) -> tuple[Tensor, list[Tensor]]:
    """The last candidates of a search for ``target``, and every one that was judged."""
    seen: list[Tensor] = []

    def losses(x: Tensor, logits: Tensor | None, rows) -> Tensor:
        seen.append(x.detach().clone())
        return (x - target).square().flatten(1).sum(1)

    start = torch.zeros_like(target).requires_grad_()
    move = solver.begin(Moving(x=start, losses=losses, space=SPACE, draws=draws or Draws.of(len(target))))
    for number in range(solver.steps):
        move(number)
    move.judge()
    return seen[-1], seen


DESCENT = Descent(Adam(0.1), 2000, schedule=CosineDecay())


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_it_finds_the_ridge_solution_of_a_linear_generator(weight, linear, target):
    """x = (G(z) − mean)/std, so with W̃ = W/std: z = (W̃ W̃ᵀ + w/(B·k))⁻¹ W̃ (t − x₀), w · mean z² being over a row's B·k latents."""
    found, _ = searched(Latent(linear, SIZE, DESCENT, weight), target)
    scaled = linear.weight / 0.5
    base = (linear.middle - 0.25) / 0.5
    inner = scaled @ scaled.T + weight / (3 * SIZE) * torch.eye(SIZE).double()
    z = (target.flatten(2) - base) @ scaled.T @ torch.linalg.inv(inner)
    torch.testing.assert_close(found.flatten(2), base + z @ scaled, rtol=0, atol=1e-4)


def test_pixels_go_on_from_the_last_image_and_leave_the_generators_plane(linear, target):
    latent, _ = searched(Latent(linear, SIZE, DESCENT, 0.0), target)
    still, judged = searched(Latent(linear, SIZE, DESCENT, 0.0, Descent(Adam(1e-12), 1, project=False)), target)
    torch.testing.assert_close(still, latent, rtol=0, atol=1e-9)
    assert len(judged) == DESCENT.steps + 3  # the last latents are judged before pixels move, and the last pixels
    free, _ = searched(Latent(linear, SIZE, DESCENT, 0.0, Descent(Adam(0.02), 1500, project=False)), target)
    torch.testing.assert_close(free, target, rtol=0, atol=1e-3)
    assert (latent - target).abs().max() > 0.1


def test_images_stay_valid_where_pixels_are_kept_in_range(linear, target):
    found, _ = searched(Latent(linear, SIZE, DESCENT, 0.0, Descent(Adam(0.5), 50)), 9 * target)
    assert torch.equal(SPACE.project(found), found)


def test_a_restart_does_not_depend_on_its_company(linear, target):
    short = Latent(linear, SIZE, Descent(Adam(0.1), 5), 0.1)
    both, _ = searched(short, target, draws=Draws.of(2, seed=4))
    second, _ = searched(short, target[1:], draws=Draws.of(2, seed=4).take(slice(1, 2)))
    torch.testing.assert_close(both[1:], second)
    first, judged = searched(short, target[:1].expand(2, -1, -1, -1, -1), draws=Draws.of(2, seed=4))
    assert not torch.equal(judged[0][0], judged[0][1])  # restarts of one observation start elsewhere
    again, _ = searched(short, target[:1].expand(2, -1, -1, -1, -1), draws=Draws.of(2, seed=4))
    assert torch.equal(first, again)


def test_what_cannot_be_is_refused(linear, target):
    with pytest.raises(BadInput, match="latents of at least 1"):
        Latent(linear, 0)
    with pytest.raises(BadInput, match="must not be negative"):
        Latent(linear, SIZE, weight=-1.0)
    given = Moving(
        x=target.requires_grad_(), losses=lambda x, _, rows: x.flatten(1).sum(1), space=SPACE, draws=Draws.of(2)
    )
    move = Latent(linear, SIZE).begin(given)
    with pytest.raises(BadInput, match="successive halving"):
        move.keep(1, torch.zeros(2))
