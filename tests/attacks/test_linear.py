"""Closed form: the input of a fully connected first layer is read off exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from leakgauge.attacks import linear
from leakgauge.attacks.linear import Linear, input_of_linear
from leakgauge.audit import score
from leakgauge.channels import SGD, FedAvg, Gradient
from leakgauge.core import Observation, Pixels, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.defenses import Clip, WithholdNames
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import SignRule
from leakgauge.models import CNN, MLP

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)


@pytest.mark.parametrize(
    "channel",
    [
        Gradient(),
        FedAvg(steps=1, lr=0.1),
        FedAvg(steps=1, lr=1e-3),
        FedAvg(steps=5, lr=0.05, optimizer=SGD(momentum=0.9)),
    ],
    ids=repr,
)
@pytest.mark.parametrize("i", [0, 5, 9])
def test_at_least_sixty_decibels(channel, i):
    victim = Victim(MLP(), SPACE)
    images, labels = fashion("test")
    x, y = SPACE.encode(images[i : i + 1]), labels[i : i + 1]
    result = linear()(victim, share(victim, channel, x, y))
    scores = score(result, x, y, space=SPACE)
    assert scores.psnr[0] >= 60
    assert scores.labels == (1.0,)
    assert result.candidates.shape == (1, 1, 1, 28, 28)


def test_the_formula_against_numpy():
    rng = np.random.default_rng(0)
    delta, x = rng.normal(size=7), rng.normal(size=12)
    found = input_of_linear(torch.tensor(np.outer(delta, x)), torch.tensor(delta))
    np.testing.assert_allclose(found.numpy(), x, rtol=1e-12)
    noisy = np.outer(delta, x) + 0.1 * rng.normal(size=(7, 12))
    fitted = np.linalg.lstsq(delta[:, None], noisy, rcond=None)[0][0]  # least squares over all rows
    np.testing.assert_allclose(input_of_linear(torch.tensor(noisy), torch.tensor(delta)).numpy(), fitted, rtol=1e-10)


def test_the_result_is_a_valid_image():
    victim = Victim(MLP(), SPACE)
    signal = Gradient()(victim, 100 * torch.ones(1, 1, 28, 28), torch.tensor([1]))  # of no image: share would refuse it
    x = linear()(victim, Observation(signal, Gradient(), size=1)).x
    torch.testing.assert_close(x, SPACE.encode(torch.ones(1, 1, 28, 28)))


def test_a_clipped_gradient_does_not_help():
    victim, x = Victim(MLP(), SPACE), SPACE.encode(fashion("test")[0][:1])
    seen = share(victim, Gradient(), x, torch.tensor([1]), defenses=(Clip(1e-3),))
    torch.testing.assert_close(linear()(victim, seen).x, x, atol=1e-3, rtol=1e-3)


def test_an_unknown_label_is_no_obstacle():
    victim, x = Victim(MLP(), SPACE, loss=lambda out, y: out.square().mean()), SPACE.encode(fashion("test")[0][:1])
    result = linear()(victim, share(victim, Gradient(), x, torch.tensor([1])))
    torch.testing.assert_close(result.x, x, atol=1e-3, rtol=1e-3)
    assert result.y is None
    refusing = Linear(labels=SignRule())(victim, share(victim, Gradient(), x, torch.tensor([1])))
    assert refusing.y is None
    torch.testing.assert_close(refusing.x, x, atol=1e-3, rtol=1e-3)


class NoBiasFirst(MLP):
    def __init__(self):
        super().__init__(bias=False)


class Halved(nn.Module):
    """A linear first layer that sees only half of the image."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(392, 8), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.first(x.flatten(1)[:, :392]).relu())


@pytest.mark.parametrize(
    ("model", "count", "defenses", "message"),
    [
        (MLP, 2, (), "gradient mix 2"),
        (NoBiasFirst, 1, (), r"not shared: body\.0\.bias"),
        (MLP, 1, (WithholdNames(("body.0.weight",)),), r"not shared: body\.0\.weight"),
        (CNN, 1, (), "but this is a Conv2d"),
        (Halved, 1, (), "takes 392 values, but the input has 784"),
    ],
)
def test_refusals(model, count, defenses, message):
    victim = Victim(model(), SPACE)
    seen = share(victim, Gradient(), torch.rand(count, 1, 28, 28), torch.arange(count), defenses=defenses)
    with pytest.raises(Inapplicable, match=message):
        linear()(victim, seen)


class ChannelsLast(nn.Module):
    def forward(self, x):
        return x.permute(0, 3, 2, 1)


@pytest.mark.parametrize(
    "before", [nn.LayerNorm((1, 28, 28)), nn.Tanh(), nn.AvgPool2d(3, 1, 1), nn.Dropout(0.5), ChannelsLast()]
)
def test_a_layer_that_does_not_see_the_image_itself_is_refused(before):
    """What it sees would be read off exactly, and would not be the image."""
    victim = Victim(nn.Sequential(before, nn.Flatten(), nn.Linear(784, 10)), SPACE, mode="train")
    seen = share(victim, Gradient(), SPACE.encode(fashion("test")[0][:1]), torch.tensor([1]))
    with pytest.raises(Inapplicable, match="does not read the image itself"):
        linear()(victim, seen)


def test_a_dead_layer_is_refused():
    with pytest.raises(Inapplicable, match="bias gradient of the first layer is zero"):
        input_of_linear(torch.zeros(3, 4), torch.zeros(3))


def test_a_damaged_signal_is_refused():
    victim = Victim(MLP(), SPACE)
    seen = share(victim, Gradient(), torch.rand(1, 1, 28, 28) * torch.nan, torch.tensor([1]))
    with pytest.raises(BadInput, match="NaN"):
        linear()(victim, seen)
