"""R-GAP: what is refused, each with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.attacks import r_gap
from leakgauge.attacks.r_gap import RGap
from leakgauge.channels import FedAvg, Gradient, ShuffledFedAvg
from leakgauge.core import Pixels, Victim, share
from leakgauge.defenses import WithholdNames
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import SignRule
from leakgauge.models import CNN
from leakgauge.models.seeded import seeded
from tests.attacks.r_gap.attacking import SPACE, attacked, image


def chain(width, *, bias=True):
    """A 3 × 3 convolution, leaky ReLU and a head, in float64."""
    with seeded(0):
        layers = [
            nn.Conv2d(2, width, 3, 1, 1, bias=bias),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(64 * width, 5, bias=bias),
        ]
    return nn.Sequential(*layers).double()


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1), nn.Linear(128, 3)

    def forward(self, x):
        return self.head((self.two(self.one(x)) + x).flatten(1))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(128, 3)

    def forward(self, x):
        return self.head(self.one(self.one(x).tanh()).tanh().flatten(1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(128, 3)

    def forward(self, x):
        x = self.one(x).tanh()
        return self.head((x * x).flatten(1))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(128, 3)

    def forward(self, x):
        return self.head(x.flatten(1)), x


class Rows(nn.Module):
    """A linear layer over every row of the image."""

    def __init__(self):
        super().__init__()
        self.one, self.head = nn.Linear(8, 8), nn.Linear(128, 3)

    def forward(self, x):
        return self.head(self.one(x).tanh().flatten(1))


def around(*layers, width=128):
    return nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), *layers, nn.Flatten(), nn.Linear(width, 3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (around(nn.BatchNorm2d(2)), "the model normalises (batch_norm of 1); R-GAP only inverts layers and activations"),
        (around(nn.LayerNorm((2, 8, 8))), "the model normalises (layer_norm of 1); R-GAP only inverts layers and activations"),
        (around(nn.MaxPool2d(2), width=32), "the model pools (max_pool2d of 1); merged values have no equations"),
        (around(nn.AvgPool2d(2), width=32), "the model pools (avg_pool2d of 1); merged values have no equations"),
        (Residual(), "not a plain chain of layers: add reads 2 tensors, as in a residual connection"),
        (Gated(), "the model has mul; R-GAP inverts convolutions"),
        (Twice(), "one.weight is used more than once, so its gradient mixes several inputs"),
        (Rows(), "the linear layer one reads several vectors of one sample, and their gradients are summed"),
        (around(nn.GELU()), "the model has gelu of 1; R-GAP inverts convolutions, linear layers, leaky ReLU, ReLU, ELU, sigmoid and tanh"),
        (around(nn.LeakyReLU(-0.1)), "the model has leaky_relu of 1; R-GAP inverts"),
        (nn.Sequential(nn.Tanh(), *around()), "tanh changes the image before the first layer, which R-GAP cannot invert"),
        (nn.Sequential(*around(), nn.Sigmoid()), "the model ends in sigmoid; R-GAP starts from a linear head that returns the scores"),
        (nn.Sequential(nn.Conv2d(2, 3, 8), nn.Flatten()), "the model ends in a convolution; R-GAP starts from a linear head"),
    ],
)  # fmt: skip
def test_models_that_are_no_chain_are_refused_by_what_they_have(model, message):
    with pytest.raises(Inapplicable) as refusal:
        attacked(model.double().eval(), image(), 1)
    assert str(refusal.value).startswith(message)


def test_other_refusals():
    x, model = image(), chain(12)
    for channel in (FedAvg(steps=3), ShuffledFedAvg(epochs=3)):
        with pytest.raises(Inapplicable, match=r"^R-GAP needs the gradient of one step, but the update sums 3$"):
            attacked(model, x, channel=channel)
    with pytest.raises(Inapplicable, match=r"^R-GAP solves for one sample, but the shared gradient mixes 2$"):
        attacked(model, torch.cat([x, x]), [1, 2])
    with pytest.raises(Inapplicable, match=r"^not shared: 0\.weight$"):
        attacked(model, x, defenses=(WithholdNames(("0.weight",)),))
    with pytest.raises(Inapplicable, match=r"^not shared: 3\.weight$"):
        attacked(model, x, defenses=(WithholdNames(("3.weight", "3.bias")),))
    with pytest.raises(
        Inapplicable,
        match=r"^128 values enter 0, which would need a dense system of 0\.0 GiB; R-GAP stops at 100 \(option unknowns\)$",
    ):
        attacked(model, x, unknowns=100)
    without = (WithholdNames(("3.bias",)),)
    with pytest.raises(
        Inapplicable, match=r"^not shared: the bias of the head, without which R-GAP needs cross entropy"
    ):
        attacked(model, x, defenses=without, loss=lambda out, y: out.square().mean())
    with pytest.raises(BadInput, match="unknowns must be at least 1"):
        r_gap(unknowns=0)


def test_dropout_in_train_mode_is_refused_and_off_it_is_not():
    model, x = around(nn.Dropout(0.5)).double(), image()
    for mode in ("train", "eval"):
        victim = Victim(model, SPACE, mode=mode)
        seen = share(victim, Gradient(), x, torch.tensor([1]))
        if mode == "eval":
            assert torch.isfinite(r_gap()(victim, seen).x).all()
        else:
            with pytest.raises(
                Inapplicable, match=r"drops values in train mode \(dropout of 1\); which ones is unknown"
            ):
                r_gap()(victim, seen)


@pytest.mark.parametrize(
    ("model", "message"), [(Two(), "the model returns 2 outputs"), (CNN(), r"batch_norm of features\.7")]
)
def test_refusals_of_what_the_loss_takes(model, message):
    space = SPACE if isinstance(model, Two) else Pixels((1, 28, 28))
    victim = Victim(model, space, loss=lambda out, y: (out[0] if isinstance(out, tuple) else out).square().mean())
    seen = share(victim, Gradient(), torch.rand(1, *space.shape), torch.tensor([1]))
    with pytest.raises(Inapplicable, match=message):
        r_gap()(victim, seen)


def test_a_gradient_of_zero_is_refused():
    model = chain(4)
    nn.init.zeros_(model[-1].weight)
    with pytest.raises(Inapplicable, match="the gradient that reaches 0 is zero"):
        attacked(model, image())
    victim = Victim(model, SPACE)
    seen = share(victim, Gradient(), image(), torch.tensor([1]))
    for value in seen.signal.values():
        value.zero_()
    with pytest.raises(Inapplicable, match=r"the gradient of 3\.weight is zero"):
        r_gap()(victim, seen)


def test_a_signal_that_is_not_of_one_sample_is_refused():
    model, x = chain(4, bias=False), torch.cat([image(), image(1)])
    victim = Victim(model, SPACE)
    signal = Gradient()(victim, x, torch.tensor([0, 1]))
    seen = share(victim, Gradient(), x[:1], torch.tensor([0]))
    with pytest.raises(Inapplicable, match="not a product of two vectors"):
        RGap(labels=SignRule())(victim, type(seen)(signal=signal, channel=Gradient(), size=1))
