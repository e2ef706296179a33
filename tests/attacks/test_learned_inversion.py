"""A network learned from simulated, defended updates."""

import itertools

import pytest
import torch

from leakgauge import testing
from leakgauge.attacks import learned_inversion
from leakgauge.attacks.learned_inversion import set_loss
from leakgauge.audit import score
from leakgauge.channels import DPSGD, Gradient
from leakgauge.core import Auxiliary, Defended, Size, share
from leakgauge.defenses import Signs
from leakgauge.errors import BadInput, Inapplicable

QUICK = {"updates": 300, "values": 256, "epochs": 40}


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_the_loss_of_a_set_takes_the_best_order(size):
    rng = torch.Generator().manual_seed(0)
    made, true = torch.rand(2, 3, 2 * size, 3, 3, generator=rng)
    a, b = (t.unflatten(1, (size, 2)) for t in (made, true))
    orders = [list(p) for p in itertools.permutations(range(size))]
    best = torch.stack([(a - b[:, p]).square().flatten(1).mean(1) for p in orders]).amin(0)
    assert float(set_loss(made, true, size=size)) == pytest.approx(float(best.mean()), rel=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_updates_held_out_show_no_image_that_was_trained_on(size):
    members, held_out = learned_inversion(updates=200)._members(50, size, seed=0)
    assert members.shape == (200, size)
    rest = torch.ones(200, dtype=torch.bool)
    rest[held_out] = False
    assert not set(members[held_out].flatten().tolist()) & set(members[rest].flatten().tolist())
    assert all(len(set(row.tolist())) == size for row in members)


def seen_of(count, *, knows=True, channel=None):
    victim, x, y = testing.tiny_case("cnn", count=count)
    own = Auxiliary(victim.space.encode(testing.tiny_images(70)[0][10:]))
    reveal = (Size(), own, *((Defended(),) if knows else ()))
    return victim, x, y, share(victim, channel or Gradient(), x, y, defenses=(Signs(),), reveal=reveal)


def test_it_learns_through_a_defense_that_it_knows():
    victim, x, y, seen = seen_of(1)
    psnr = [
        score(learned_inversion(**QUICK)(victim, one), x, y, space=victim.space).mean("psnr")
        for one in (seen, seen_of(1, knows=False)[3])
    ]
    assert psnr[0] > psnr[1] + 1


def test_a_batch_and_its_notes():
    victim, x, _, seen = seen_of(2)
    found = learned_inversion(**QUICK)(victim, seen)
    assert found.x.shape == x.shape
    assert "270 simulated updates, defended as the client's, from 60 images" in found.notes[0]
    assert "unexplained (best epoch" in found.notes[0]


def test_noise_of_a_channel_is_drawn_by_the_adversary():
    assert DPSGD(clip=1.0, noise=2.0).public().simulated(7) == DPSGD(clip=1.0, noise=2.0, seed=7)


def test_it_needs_images_and_sane_settings():
    victim, x, y = testing.tiny_case("cnn")
    with pytest.raises(Inapplicable, match="auxiliary:900"):
        learned_inversion()(victim, share(victim, Gradient(), x, y))
    with pytest.raises(BadInput, match="updates of at least 16"):
        learned_inversion(updates=3)
