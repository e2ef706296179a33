"""What attacks read off the updates of models that malicious servers sent."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakgauge.attacks import fishing, imprint, linear_rows
from leakgauge.attacks.imprint import images_in_bins
from leakgauge.attacks.linear_rows import distinct_images, quotients
from leakgauge.channels import Aggregate, FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import Withhold
from leakgauge.errors import Inapplicable
from leakgauge.servers import FishingServer, ImprintServer, TrapWeightServer

SPACE = Pixels((3, 6, 5), mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))


def of_brightness(values: list[float], space: Pixels = SPACE, seed: int = 0) -> Tensor:
    """Random pictures whose means are these values (model space, float64)."""
    noise = torch.rand(len(values), *space.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    noise = (noise - noise.flatten(1).mean(1).view(-1, 1, 1, 1)) * 0.1
    return space.encode(noise + torch.tensor(values, dtype=torch.float64).view(-1, 1, 1, 1))


def convolutional(space: Pixels = SPACE, *, norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    channels, height, width = space.shape
    between = [nn.BatchNorm2d(4)] if norm else []
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), *between, nn.ReLU(), nn.Flatten(), nn.Linear(4 * (height - 2) * (width - 2), 3)
    ).double()


def mlp(width: int, space: Pixels = SPACE) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(space.shape), width), nn.ReLU(), nn.Linear(width, 3)
    ).double()


def found_in(guesses: Tensor, truths: Tensor) -> Tensor:
    """For each truth the distance of the nearest guess, by its largest pixel."""
    return torch.cdist(truths.flatten(1), guesses.flatten(1), p=math.inf).amin(1)


@settings(max_examples=20, deadline=None)
@given(
    places=st.sets(st.integers(0, 15), min_size=1, max_size=6),
    norm=st.booleans(),
    mode=st.sampled_from(["eval", "train"]),
)
def test_images_alone_in_their_bins_come_back_exactly(places, norm, mode):
    if norm and mode == "train" and len(places) == 1:
        mode = "eval"
    x = of_brightness([(k + 0.5) / 16 * 0.8 + 0.1 for k in places])
    bins = 160  # of width 1/160: a pair of places is 8 of them apart
    sent = ImprintServer(bins=bins)(Victim(convolutional(norm=norm), SPACE, mode=mode))
    seen = share(sent, Gradient(), x, torch.arange(len(x)) % 3)
    guess = imprint()(sent, seen)
    assert guess.x.shape == x.shape
    assert float(found_in(guess.x, x).max()) < 1e-6
    assert guess.notes == (f"{len(x)} of {bins} bins are filled, for {len(x)} images",)


def test_images_in_one_bin_come_back_mixed_and_what_is_missing_is_grey():
    x = of_brightness([0.301, 0.302, 0.7])
    sent = ImprintServer(bins=10)(Victim(convolutional(), SPACE))
    guess = imprint()(sent, share(sent, Gradient(), x, torch.tensor([0, 0, 1])))
    near = found_in(guess.x, x)
    assert float(near[2]) < 1e-6
    assert float(near[:2].min()) > 1e-2
    grey = SPACE.encode(torch.full((1, *SPACE.shape), 0.5, dtype=torch.float64))
    assert float(found_in(guess.x, grey)) < 1e-6


def test_secure_aggregation_does_not_hide_from_an_imprint():
    x = of_brightness([0.2, 0.4, 0.6, 0.8])
    sent = ImprintServer(bins=32)(Victim(convolutional(), SPACE))
    seen = share(sent, Aggregate(clients=2), x, torch.tensor([0, 1, 2, 0]))
    assert float(found_in(imprint()(sent, seen).x, x).max()) < 1e-6


def test_bins_by_hand():
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]])  # the first in bin 0, the second in the last, 2
    delta = torch.tensor([2.0, -4.0])
    weight = torch.stack([delta @ x, delta[1] * x[1], delta[1] * x[1]])
    bias = torch.stack([delta.sum(), delta[1], delta[1]])
    images, strength = images_in_bins(weight, bias)
    assert images.tolist() == x.tolist()
    assert strength.tolist() == delta.tolist()


def test_rows_of_a_linear_layer_by_hand():
    weight, bias = torch.tensor([[2.0, 4.0], [0.0, 0.0], [3.0, -3.0]]), torch.tensor([2.0, 0.0, -3.0])
    assert quotients(weight, bias).tolist() == [[1.0, 2.0], [-1.0, 1.0]]


def test_what_two_units_show_alike_is_believed_first_and_once():
    victim = Victim(mlp(4, Pixels((1, 2, 2))), Pixels((1, 2, 2)))
    valid, outside = torch.tensor([0.1, 0.9, 0.4, 0.3]), torch.tensor([0.1, 1.9, 0.4, 0.3])
    twice = torch.tensor([0.7, 0.2, 0.6, 0.5])
    rows = torch.stack([outside, valid, twice, outside, twice, outside]).double()
    kept, shown = distinct_images(rows, victim, seed=0)
    assert shown == 1
    assert kept.tolist() == torch.stack([twice, valid, outside]).double().tolist()
    assert distinct_images(rows[:0], victim, seed=0)[1] == 0


def test_traps_catch_more_of_a_batch_than_honest_weights():
    x = of_brightness([0.2 + 0.05 * k for k in range(12)], seed=5)
    y = torch.arange(12) % 3
    honest = Victim(mlp(200), SPACE)
    trapped = TrapWeightServer(share=1 / 12)(
        honest, auxiliary=of_brightness([0.2 + 0.004 * k for k in range(150)], seed=6)
    )
    caught = {}
    for name, victim in (("honest", honest), ("trapped", trapped)):
        guess = linear_rows()(victim, share(victim, Gradient(), x, y))
        assert guess.x.shape == x.shape
        caught[name] = int((found_in(guess.x, x) < 1e-6).sum())
    assert caught["trapped"] > caught["honest"]
    assert caught["trapped"] >= 6


def test_a_fished_image_is_recovered_and_the_others_are_grey():
    torch.manual_seed(0)
    space = Pixels((1, 6, 6))
    body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Sigmoid(), nn.Conv2d(16, 16, 3), nn.Sigmoid(), nn.Flatten())
    sent = FishingServer(target=1)(Victim(nn.Sequential(body, nn.Linear(256, 3)), space))
    x = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    seen = share(sent, Gradient(), x, torch.tensor([0, 2, 1, 0, 2]))
    guess = fishing(steps=400, tv=0.0)(sent, seen)
    assert guess.x.shape == x.shape
    errors = (guess.x[0] - x).square().flatten(1).mean(1)
    assert int(errors.argmin()) == 2
    assert float(errors[2]) < 0.01 < float(errors[[0, 1, 3, 4]].min())
    assert torch.equal(guess.x[1:], torch.full_like(x[1:], 0.5))
    assert "class 1 has 1 of the 5 images" in guess.notes[-1]
    blind = fishing(steps=5).blind()(sent, seen)
    assert blind.x.shape == x.shape


def test_refusals_say_what_is_missing():
    victim = Victim(convolutional(), SPACE)
    x, y = of_brightness([0.2, 0.6]), torch.tensor([0, 1])
    with pytest.raises(Inapplicable, match="has no imprint block"):
        imprint()(victim, share(victim, Gradient(), x, y))
    with pytest.raises(Inapplicable, match="does not fish for a class"):
        fishing()(victim, share(victim, Gradient(), x, y))
    with pytest.raises(Inapplicable, match="but this is a Conv2d"):
        linear_rows()(victim, share(victim, Gradient(), x, y))
    fished = FishingServer(target=2)(victim)
    with pytest.raises(Inapplicable, match="has no image of class 2"):
        fishing()(fished, share(fished, Gradient(), x, y))
    with pytest.raises(Inapplicable, match="single gradient"):
        fishing()(fished, share(fished, FedAvg(steps=2, lr=0.1), x, y))
    with pytest.raises(Inapplicable, match=r"not shared: 3\.bias"):
        fishing()(fished, share(fished, Gradient(), x, y, defenses=[Withhold(("head",))]))
    for server, attack, name in (
        (ImprintServer(), imprint(), "imprint.measure.weight"),
        (TrapWeightServer(), linear_rows(), "1.weight"),
    ):
        sent = server(Victim(mlp(8), SPACE))
        seen = share(sent, Gradient(), x, y)
        kept = {key: value for key, value in seen.signal.items() if key != name}
        with pytest.raises(Inapplicable, match=f"not shared: {name}"):
            attack(sent, type(seen)(signal=kept, channel=seen.channel, size=2))
