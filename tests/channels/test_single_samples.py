"""Gradients of single samples: all at once, one after another, and both against the gradient of a batch of one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import Gradient
from leakgauge.channels.gradient import each_gradient, for_each_sample, without_torch_func
from leakgauge.monitor.whitebox import per_sample_gradients


class Branching(nn.Module):
    """What runs depends on the values, which vmap cannot follow; ``unused`` has no part in the loss."""

    def __init__(self):
        super().__init__()
        self.head, self.unused = nn.Linear(36, 4), nn.Linear(2, 2)

    def forward(self, x):
        out = self.head(x.flatten(1))
        return out.tanh() if float(out.detach().sum()) > 0 else out


def each(victim, x, y):
    return each_gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())


@pytest.mark.parametrize("mapped", [True, False], ids=["all at once", "one after another"])
def test_both_ways_are_the_gradients_of_batches_of_one(tiny, victim_of, batch_of, same, mapped):
    x, y = batch_of(4)
    victim = victim_of(tiny() if mapped else Branching())
    channel = each(victim, x, y)
    monitor = per_sample_gradients(victim.model, F.cross_entropy, tuple(victim.parameters()), x, y, seed=0)
    for i in range(4):
        alone = Gradient()(victim, x[i : i + 1], y[i : i + 1])
        same({name: rows[i] for name, rows in channel.items()}, alone, tolerance=1e-5)
        same({name: rows[i] for name, rows in monitor.items()}, alone, tolerance=1e-5)


def test_all_at_once_is_one_call_and_the_other_way_one_for_each_sample(victim_of, batch_of):
    x, y = batch_of(3)
    for model, calls in ((nn.Sequential(nn.Flatten(), nn.Linear(36, 4)), 1), (Branching(), 1 + 3)):
        victim = victim_of(model)
        sizes = []

        def counted(x, y, victim=victim, sizes=sizes):
            sizes.append(len(x))
            return Gradient()(victim, x, y)

        for_each_sample(counted, x, y)
        assert sizes == [1] * calls
    with without_torch_func():
        sizes.clear()
        for_each_sample(counted, x, y)
    assert sizes == [1] * 3


def test_an_error_of_the_model_itself_is_not_swallowed(victim_of, batch_of):
    x, y = batch_of(2)
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(35, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        each(victim_of(wrong), x, y)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        per_sample_gradients(wrong, F.cross_entropy, ("1.weight",), x, y, seed=0)


@pytest.mark.parametrize("mapped", [True, False], ids=["all at once", "one after another"])
def test_named_targets_are_taken_sample_by_sample_too(tiny, victim_of, batch_of, same, mapped):
    x, y = batch_of(3)
    model = tiny() if mapped else Branching()
    named = victim_of(model, loss=lambda out, y: F.cross_entropy(out, y["class"]))
    same(each(named, x, {"class": y}), each(victim_of(model), x, y), tolerance=1e-7)


@pytest.mark.parametrize("mapped", [True, False], ids=["all at once", "one after another"])
def test_they_can_be_differentiated_again(tiny, victim_of, batch_of, mapped):
    """The slope in sample i of the length of gradient i is that of a batch of one; other samples have no part in it."""
    x, y = batch_of(2)
    victim = victim_of(tiny() if mapped else Branching())
    free = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(sum(rows[0].square().sum() for rows in each(victim, free, y).values()), free)
    single = x[:1].clone().requires_grad_()
    (alone,) = torch.autograd.grad(sum(g.square().sum() for g in Gradient()(victim, single, y[:1]).values()), single)
    torch.testing.assert_close(slope[:1], alone, rtol=1e-4, atol=1e-6)
    assert float(slope[1].abs().max()) == 0.0
