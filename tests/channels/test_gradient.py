"""The gradient channel against plain ``loss.backward()`` on a deep copy."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import Gradient


def backward(model: nn.Module, x, y, *, mode: str) -> tuple[dict, dict]:
    """Gradients by torch's own means, and the buffers afterwards."""
    twin = copy.deepcopy(model).train(mode == "train")
    F.cross_entropy(twin(x), y).backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in twin.named_parameters()}
    return grads, dict(twin.named_buffers())


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("n", [1, 5])
def test_equals_backward(mode, n, tiny, victim_of, batch_of, same):
    x, y = batch_of(n)
    grads, buffers = backward(tiny(), x, y, mode=mode)
    victim = victim_of(mode=mode)
    same(Gradient()(victim, x, y), grads)
    same(Gradient().buffers(victim, x, y), buffers)


def test_train_and_eval_mode_differ(victim_of, batch_of):
    x, y = batch_of(5)
    train, evaluated = (Gradient()(victim_of(mode=mode), x, y) for mode in ("train", "eval"))
    assert (train["0.weight"] - evaluated["0.weight"]).norm() > 0.1 * evaluated["0.weight"].norm()


def test_a_batch_in_eval_mode_is_the_mean_of_its_samples(victim_of, batch_of, same):
    victim, (x, y) = victim_of(), batch_of(4)
    single = [Gradient()(victim, x[i : i + 1], y[i : i + 1]) for i in range(4)]
    same(Gradient()(victim, x, y), {n: torch.stack([g[n] for g in single]).mean(0) for n in single[0]})


def test_class_probabilities_stand_for_labels(victim_of, batch_of, same):
    victim, (x, y) = victim_of(), batch_of(3)
    same(Gradient()(victim, x, F.one_hot(y, 4).float()), Gradient()(victim, x, y))


def test_an_unused_parameter_has_a_gradient_of_zero(victim_of, batch_of):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(36, 4), nn.Linear(36, 4)

        def forward(self, x):
            return self.used(x.flatten(1))

    found = Gradient()(victim_of(Unused()), *batch_of(2))
    assert not found["idle.weight"].any()
    assert found["used.weight"].any()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_derivative_in_the_image(mode, victim_of, batch_of):
    victim = victim_of(mode=mode)
    victim.model.double()
    x, y = batch_of(2)

    def signal(x):
        return tuple(Gradient()(victim, x, y).values())

    assert torch.autograd.gradcheck(signal, (x.double().requires_grad_(),), fast_mode=True)


def test_derivative_in_the_label(victim_of, batch_of):
    victim = victim_of()
    victim.model.double()
    x, _ = batch_of(2)
    logits = torch.randn(2, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def signal(logits):
        return tuple(Gradient()(victim, x.double(), logits.softmax(-1)).values())

    assert torch.autograd.gradcheck(signal, (logits,), fast_mode=True)


def test_no_graph_where_nothing_can_be_differentiated(victim_of, batch_of):
    x, y = batch_of(2)
    assert not any(g.requires_grad for g in Gradient()(victim_of(), x, y).values())
    with torch.no_grad():
        assert not any(g.requires_grad for g in Gradient()(victim_of(), x.requires_grad_(), y).values())
