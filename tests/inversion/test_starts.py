"""Where searches begin: drawn from the generator given, of the right shape, around the right values."""

from __future__ import annotations

import pytest
import torch

from leakgauge.channels import Gradient
from leakgauge.core import NoisyCopy, Observation, Pixels, Size, share
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import L2, Constant, FromSpace, Given, Matching, NearTruth, Normal, Uniform

SPACE = Pixels((2, 20, 20), mean=(0.5,), std=(0.25,))
NOTHING = Observation(signal={}, channel=Gradient())


def begun(start, *, rows: int = 3, size: int = 2, seed: int = 0):
    return start(SPACE, NOTHING, rows, size, rng=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "start",
    [FromSpace(), Normal(), Uniform(), Constant(), Given(torch.zeros(2, 20, 20), 0.1)],
    ids=lambda s: type(s).__name__,
)
def test_shape_and_seed(start):
    x = begun(start)
    assert x.shape == (3, 2, 2, 20, 20)
    assert torch.equal(x, begun(start))
    if not isinstance(start, Constant):
        assert not torch.equal(x, begun(start, seed=1))
        assert not torch.equal(x[0], x[1])
        assert not torch.equal(x[0, 0], x[0, 1])


def test_normal():
    assert torch.equal(begun(Normal(2.0)), 2 * begun(Normal()))
    assert float(begun(Normal(2.0)).std()) == pytest.approx(2, abs=0.1)
    assert float(begun(FromSpace()).std()) == pytest.approx(1, abs=0.05)


def test_uniform_covers_the_unit_interval():
    values = SPACE.decode(begun(Uniform())).flatten()
    raw = begun(Uniform()) * 0.25 + 0.5
    assert float(raw.min()) >= 0
    assert float(raw.max()) <= 1
    for quarter in (0.25, 0.5, 0.75):
        assert float((values < quarter).double().mean()) == pytest.approx(quarter, abs=0.03)


def test_constant_is_an_image_value():
    assert begun(Constant(0.75)).unique().tolist() == [1.0]
    assert begun(Constant()).unique().tolist() == [0.0]


def test_given_adds_noise_to_the_picture():
    picture = torch.rand(2, 20, 20)
    torch.testing.assert_close(begun(Given(picture)), picture.expand(3, 2, 2, 20, 20))
    assert float((begun(Given(picture, 0.3)) - picture).std()) == pytest.approx(0.3, abs=0.02)


def test_near_truth_is_what_was_revealed(victim_of, batch_of):
    x, y = batch_of(2)
    seen = share(victim_of(), Gradient(), x, y, reveal=(Size(), NoisyCopy(0.5)))
    found = NearTruth()(Pixels((1, 6, 6)), seen, 3, 2, rng=torch.Generator())
    assert torch.equal(found, seen.near.expand(3, 2, 1, 6, 6))
    with pytest.raises(Inapplicable, match="no noisy copy"):
        NearTruth()(SPACE, NOTHING, 1, 1, rng=torch.Generator())


@pytest.mark.parametrize("shape", [(1, 5, 6), (3, 6, 6)])
def test_a_picture_of_another_shape_is_refused(shape, victim_of, batch_of):
    victim = victim_of()
    seen = share(victim, Gradient(), *batch_of(2))
    with pytest.raises(BadInput, match=r"shape \(1, 6, 6\)"):
        Matching(L2(), start=Given(torch.zeros(shape)))(victim, seen)
