"""A parameter may be a single number (a temperature, a gain): no path of the engine and no reader of gradients trips over it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.attacks import inverting_gradients
from leakgauge.channels import DPSGD, FedAvg, Gradient
from leakgauge.core import share
from leakgauge.engine import Observed
from leakgauge.engine.choose import choose
from leakgauge.monitor import Protection, watch


class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        return self.gain * x


@pytest.fixture
def with_gain():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Sigmoid(), Gain(), nn.Flatten(), nn.Linear(72, 4))


@pytest.mark.parametrize(
    ("channel", "path"), [(Gradient(), "layer rules"), (FedAvg(steps=2), "vmap"), (DPSGD(noise=0.0), "vmap")], ids=repr
)
@pytest.mark.parametrize("several", [False, True])
def test_replay(with_gain, victim_of, batch_of, channel, path, several):
    victim, (x, y) = victim_of(with_gain), batch_of(2)
    rows, labels = torch.stack([x, 1 - x, 0.5 * x]), torch.stack([y] * 3)
    signals = [channel(victim, one, y) for one in rows]
    observed = Observed.check(signals[0], victim)
    if several:
        observed = Observed.stack([Observed.check(signal, victim) for signal in signals])
    chosen = choose(victim, channel, observed, rows, labels)
    assert chosen.note == f"replay: {path}"
    found = chosen.replay(rows, labels).square({"2.gain": 1.0})
    torch.testing.assert_close(found, torch.stack([s["2.gain"].square() for s in signals]), rtol=1e-4, atol=1e-9)
    distance = chosen.replay(rows, labels).l2({"2.gain": 1.0}).detach()
    assert float(distance[0]) < 1e-9
    assert (float(distance[1]) > 1e-7) != several  # the second row is what it was compared with, or something else


@pytest.mark.parametrize("channel", [Gradient(), DPSGD(clip=0.5, noise=0.1)], ids=repr)
def test_an_attack_with_restarts(with_gain, victim_of, batch_of, channel):
    victim, (x, y) = victim_of(with_gain), batch_of(2)
    found = inverting_gradients(steps=3, restarts=3)(victim, share(victim, channel, x, y))
    assert found.candidates.shape[0] == 3
    assert bool(torch.isfinite(found.losses).all())


def test_the_monitor_reads_it(with_gain, batch_of):
    x, y = batch_of(12)
    optimizer, loss = torch.optim.SGD(with_gain.parameters(), lr=0.1), nn.CrossEntropyLoss()
    monitor = watch(
        with_gain,
        optimizer,
        loss=loss,
        every=1,
        candidates=(x, y),
        protection=Protection(clip=1.0, noise=0.1),
        strict=True,
    )
    for step in range(3):
        optimizer.zero_grad()
        rows = slice(4 * step, 4 * step + 4)
        loss(with_gain(x[rows]), y[rows]).backward()
        optimizer.step()
    probe = monitor.compute().whitebox
    assert probe is not None
    assert probe.layers == 5  # with noise every tensor is read, the single number among them
    monitor.close()
