"""Derivatives of what a replay gives, against differences of its own loss, and the buffers that it starts from."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakgauge.channels import DPSGD, FedAvg, Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.engine import ByRules, Observed, Reference, VmapReplay


def double(victim: Victim) -> Victim:
    return replace(victim, model=victim.model.double())


class Normalised(nn.Module):
    """Both kinds of normalisation whose derivative torch.func gets wrong, with weights that are not one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.batch, self.instance = (
            nn.Conv2d(1, 4, 5, stride=2),
            nn.BatchNorm2d(4),
            nn.InstanceNorm2d(4, affine=True),
        )
        self.layer, self.head = nn.LayerNorm((4, 4)), nn.Linear(64, 4)
        with torch.no_grad():
            for norm in (self.batch, self.instance, self.layer):
                norm.weight.copy_(torch.linspace(0.5, 1.5, norm.weight.numel()).view_as(norm.weight))
                norm.bias.copy_(torch.linspace(-0.5, 0.5, norm.bias.numel()).view_as(norm.bias))

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.tanh(self.batch(self.conv(x)))
        return self.head(torch.tanh(self.layer(self.instance(maps))).flatten(1))


@pytest.mark.parametrize(
    ("mode", "channel"),
    [
        ("eval", Gradient()),
        ("eval", DPSGD(clip=0.1)),
        ("train", Gradient()),
        ("train", FedAvg(steps=2, lr=0.1)),
    ],
)
def test_the_slope_through_mapped_normalisation_is_that_of_the_loss(mode, channel):
    """torch.func alone holds mean and deviation for constants where it differentiates the gradient of a norm's weight."""
    torch.manual_seed(0)
    victim = double(Victim(Normalised(), Pixels((1, 12, 12)), mode=mode))
    x, y = torch.rand(2, 2, 1, 12, 12, dtype=torch.float64), torch.tensor([[0, 1], [2, 3]])
    observed = Observed.check(share(victim, channel, x[0], y[0]).signal, victim)
    replay = VmapReplay(victim, channel, observed)

    def loss(at: Tensor) -> Tensor:
        replayed = replay(at, y)
        return replayed.l2(dict.fromkeys(replayed.names, 1.0)).sum()

    at, along = (x + 0.1).requires_grad_(), torch.randn(x.shape, dtype=torch.float64)
    (slope,) = torch.autograd.grad(loss(at), at)
    with torch.no_grad():
        difference = (loss(at + 1e-5 * along) - loss(at - 1e-5 * along)) / 2e-5
    torch.testing.assert_close((slope * along).sum(), difference, rtol=1e-6, atol=1e-10)


class WritesItsBuffer(nn.Module):
    """Changes a buffer in each pass and uses it, as spectral normalisation and running codebooks do in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(144, 4)
        self.register_buffer("gain", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.gain.mul_(2)
        return self.head(torch.tanh(x.flatten(1) * self.gain))


def test_every_replay_starts_from_the_buffers_of_the_client():
    victim = double(Victim(WritesItsBuffer(), Pixels((1, 12, 12)), mode="train"))
    x, y = torch.rand(3, 1, 1, 12, 12, dtype=torch.float64), torch.tensor([[0], [1], [2]])
    observed = Observed.check(share(victim, Gradient(), x[0], y[0]).signal, victim)
    fast, slow = ByRules(victim, observed), Reference(victim, Gradient(), observed)
    for _ in range(3):
        torch.testing.assert_close(fast(x, y).gradient("head.weight"), slow(x, y).gradient("head.weight"))
