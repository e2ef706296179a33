"""Local epochs in secret orders: the update is the client's, the order is not in what the adversary gets."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import FedAvg, ShuffledFedAvg
from leakgauge.core import Buffers, Size, share
from leakgauge.errors import BadInput


def trained(model: nn.Module, x, y, orders, *, lr: float, size: int) -> dict:
    """Plain torch: SGD over the minibatches of each order."""
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for order in orders:
        for rows in order.split(size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return {n: p.detach() - before[n] for n, p in model.named_parameters()}


def test_against_plain_training(tiny, victim_of, batch_of, same):
    x, y = batch_of(4)
    rng = torch.Generator().manual_seed(9)
    orders = [torch.randperm(4, generator=rng) for _ in range(3)]
    channel = ShuffledFedAvg(epochs=3, lr=0.1, minibatch=2, seed=9)
    found = channel(victim_of(mode="train"), x, y)
    same(found, trained(tiny().train(), x, y, orders, lr=0.1, size=2), tolerance=1e-5)
    assert channel.unroll(4) == FedAvg(steps=6, lr=0.1, minibatch=2)


def test_the_order_stays_with_the_client(victim_of, batch_of):
    victim, (x, y) = victim_of(mode="train"), batch_of(4)
    channel = ShuffledFedAvg(epochs=2, minibatch=1, seed=7)
    seen = share(victim, channel, x, y, reveal=(Size(), Buffers()))
    assert seen.channel == ShuffledFedAvg(epochs=2, minibatch=1, seed=None)
    assert torch.equal(seen.signal["0.weight"], channel(victim, x, y)["0.weight"])
    assert not torch.equal(seen.signal["0.weight"], seen.channel(victim, x, y)["0.weight"])
    assert torch.equal(seen.buffers["1.running_mean"], channel.buffers(victim, x, y)["1.running_mean"])


def test_what_is_refused(victim_of, batch_of):
    with pytest.raises(BadInput, match="at least 1 epoch"):
        ShuffledFedAvg(epochs=0)
    with pytest.raises(BadInput, match="positive learning rate"):
        ShuffledFedAvg(lr=0)
    with pytest.raises(BadInput, match="a multiple of 2"):
        ShuffledFedAvg(minibatch=2)(victim_of(), *batch_of(3))
