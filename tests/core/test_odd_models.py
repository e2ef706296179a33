"""Models as users write them: those that change their input, that cannot be copied, whose weights hold no numbers to audit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge import BadInput, Pixels, Victim, share
from leakgauge.attacks import dlg, inverting_gradients
from leakgauge.channels import CHANNELS, DPSGD, Features, FedAvg, Gradient
from leakgauge.graphs.trace import trace_of
from leakgauge.servers import find_isolated

SPACE = Pixels((1, 6, 6))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(36, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.last(torch.sigmoid(self.first((x - 0.5).flatten(1))))


class Subtracts(Plain):
    def forward(self, x):
        x -= 0.5
        return self.last(torch.sigmoid(self.first(x.flatten(1))))


def batch(n: int = 3):
    rng = torch.Generator().manual_seed(1)
    return torch.rand(n, *SPACE.shape, generator=rng), torch.arange(n) % 4


@pytest.mark.parametrize(
    "channel", [Gradient(), FedAvg(steps=2, lr=0.1), DPSGD(clip=1.0, noise=0.0), Features("first")]
)
def test_a_model_may_change_its_input(channel, same):
    x, y = batch()
    before = x.clone()
    seen = [share(Victim(kind(), SPACE), channel, x, y).signal for kind in (Subtracts, Plain)]
    same(*seen)
    assert torch.equal(x, before)


@pytest.mark.parametrize("attack", [dlg(steps=3, restarts=2), inverting_gradients(steps=3, restarts=2)])
def test_attacks_find_the_same_whether_the_input_is_changed(attack):
    x, y = batch(1)
    found = []
    for kind in (Subtracts, Plain):
        victim = Victim(kind(), SPACE)
        found.append(attack(victim, share(victim, Gradient(), x, y)).x)
    torch.testing.assert_close(*found)


def test_isolation_and_cuts_leave_the_input_alone():
    x, y = batch()
    before = x.clone()
    ours, plain = (Victim(kind(), SPACE) for kind in (Subtracts, Plain))
    assert find_isolated(ours, x, y) == find_isolated(plain, x, y)
    traced = trace_of(ours)
    assert list(traced.points) == ["first", "last"]
    torch.testing.assert_close(traced.values(x, ["first"])["first"], trace_of(plain).values(x, ["first"])["first"])
    torch.testing.assert_close(traced.cloud("first")(*traced.edge("first")(x)), plain(x))
    assert torch.equal(x, before)


class NoCopy(Plain):
    def __deepcopy__(self, memo):
        raise TypeError("one of a kind")


class NoTrain(Plain):
    def train(self, mode=True):
        raise RuntimeError("always on")


def changed(name, value):
    model = Plain()
    setattr(model.first, name, nn.Parameter(value))
    return model


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (NoCopy, r"cannot be copied \(TypeError: one of a kind\)"),
        (NoTrain, r"train\(\) raised RuntimeError: always on"),
        (lambda: Plain().to("meta"), "first.weight of the victim's model is on the meta device"),
        (lambda: changed("weight", torch.zeros(5, 36).to_sparse()), "first.weight of the victim's model is sparse"),
        (lambda: changed("weight", torch.zeros(5, 36, dtype=torch.complex64)), "holds complex numbers"),
        (lambda: changed("bias", torch.zeros(0)), "first.bias of the victim's model has no entries"),
    ],
)
def test_what_cannot_be_audited_is_refused(model, sentence):
    with pytest.raises(BadInput, match=sentence):
        share(Victim(model(), SPACE), Gradient(), *batch())


@pytest.mark.parametrize("how", [torch.Tensor.detach, lambda scores: torch.zeros(len(scores), 4), torch.Tensor.long])
@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.1), DPSGD(clip=1.0, noise=0.0)])
def test_scores_without_a_gradient_are_refused(how, channel):
    class Cut(Plain):
        def forward(self, x):
            return how(super().forward(x))

    with pytest.raises(BadInput, match=r"no gradient to share|floating-point type"):
        share(Victim(Cut(), SPACE), channel, *batch())


def test_every_channel_is_among_those_tried():
    assert {"gradient", "fedavg", "dpsgd", "features"} <= CHANNELS.keys()
