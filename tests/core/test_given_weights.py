"""Models that hold a layer under two names, or a weight in two layers, run on given weights and come back as they were."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import inverting_gradients
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Buffers, Pixels, Size, Victim, share
from leakgauge.core.running import output_at
from leakgauge.monitor.head import head_products
from leakgauge.monitor.whitebox import per_sample_gradients


class Shared(nn.Module):
    """One layer, and one normalisation, under two names each; one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.norm = nn.BatchNorm1d(4)
        self.norm_again = self.norm
        self.middle, self.tied = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.tied.weight = self.middle.weight
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.norm_again(self.norm(self.again(self.first(x.flatten(1)).sigmoid())))
        return self.head(self.tied(self.middle(z).sigmoid()))


@pytest.fixture
def model() -> Shared:
    torch.manual_seed(0)
    return Shared()


X, Y = torch.rand(4, 1, 2, 2, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0])


def assert_as_it_was(model: nn.Module, before: dict[str, torch.Tensor]) -> None:
    now = dict(model.named_parameters(remove_duplicate=False))
    assert list(now) == list(before)
    assert all(now[name] is before[name] for name in before)


def test_the_output_is_that_of_a_model_with_these_weights(model):
    other, before = copy.deepcopy(model).eval(), dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.3)
    found = output_at(model.eval(), dict(other.named_parameters()), X)
    assert torch.equal(found, other(X))
    assert not torch.equal(found, model(X))
    assert_as_it_was(model, before)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_what_is_shared_is_what_plain_training_makes(model, mode):
    plain = copy.deepcopy(model).train(mode == "train")
    victim = Victim(model, Pixels((1, 2, 2)), mode=mode)
    own = dict(victim.model.named_parameters(remove_duplicate=False))
    seen = share(victim, Gradient(), X, Y, reveal=[Size(), Buffers()])
    F.cross_entropy(plain(X), Y).backward()
    assert list(seen.signal) == [name for name, _ in plain.named_parameters()]
    for name, p in plain.named_parameters():
        torch.testing.assert_close(seen.signal[name], p.grad)
    for name, value in plain.named_buffers():
        torch.testing.assert_close(seen.buffers[name], value)
    update = share(victim, FedAvg(steps=1, lr=0.5), X, Y).signal
    for name, value in seen.signal.items():
        torch.testing.assert_close(update[name], -0.5 * value, atol=1e-6, rtol=1e-4)
    for restarts in (1, 2):
        inverting_gradients(steps=2, restarts=restarts)(victim, seen)
        inverting_gradients(steps=2, restarts=restarts)(victim, share(victim, FedAvg(steps=2), X, Y))
    assert_as_it_was(victim.model, own)


def test_a_model_in_training_keeps_its_weights_under_the_monitors_probe(model):
    """Left inside, the probe's copies would stay where they are while the optimizer moves tensors that nothing uses."""
    before = dict(model.named_parameters(remove_duplicate=False))
    each = per_sample_gradients(model.eval(), F.cross_entropy, ("first.weight", "head.weight"), X, Y, seed=0)
    assert_as_it_was(model, before)
    F.cross_entropy(model(X), Y).backward()
    for name in ("first.weight", "head.weight"):
        torch.testing.assert_close(each[name].mean(0), before[name].grad)
    signal = {"head.weight": torch.ones(3, 4), "head.bias": torch.ones(3)}
    assert head_products(model, model.head, F.cross_entropy, tuple(signal), signal, X, Y) is not None
    assert_as_it_was(model, before)


def test_a_plain_average_of_no_batches_yet_is_replayed():
    """Mapped over restarts, the count of batches stays at zero, by which the average would be divided."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, momentum=None), nn.Flatten(), nn.Linear(8, 3)
    victim = Victim(nn.Sequential(*layers), Pixels((1, 2, 2)), mode="train")
    found = inverting_gradients(steps=2, restarts=2)(victim, share(victim, FedAvg(steps=2), X, Y))
    assert found.candidates.shape == (2, *X.shape)
