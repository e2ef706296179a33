"""Whatever ``torch.set_default_device`` and ``set_default_dtype`` say, attacks and the monitor do what they do without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge import testing
from leakgauge.attacks import dlg, inverting_gradients, linear
from leakgauge.audit.evaluate import evaluate
from leakgauge.channels import Gradient
from leakgauge.monitor import watch


@pytest.fixture(params=["meta", torch.float64, torch.bfloat16])
def other(request):
    """Changes one of torch's defaults, and puts it back."""

    def change():
        if isinstance(request.param, str):
            torch.set_default_device(request.param)
        else:
            torch.set_default_dtype(request.param)

    yield change
    torch.set_default_device(None)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("attack", [linear(), dlg(steps=3), inverting_gradients(steps=3, restarts=2)])
def test_an_evaluation_is_the_same(attack, other):
    victim, x, y = testing.tiny_case("mlp")
    usual = evaluate(victim, Gradient(), x, y, attack=attack)
    other()
    found = evaluate(victim, Gradient(), x, y, attack=attack)
    assert found.outcome == usual.outcome
    torch.testing.assert_close(found.reconstruction.x, usual.reconstruction.x)


def trained(change):
    """What the monitor says of a small training, around which one of torch's defaults is changed."""
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=rng))
    batches = [(torch.randn(8, 1, 4, 4, generator=rng), torch.arange(8) % 3) for _ in range(40)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    change()
    monitor = watch(model, optimizer, every=10, strict=True)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    found = monitor.compute()
    monitor.close()
    return found


def test_a_watched_training_is_the_same(other):
    usual, found = trained(lambda: None), trained(other)
    assert (found.infonce, found.top1, found.log_wealth) == (usual.infonce, usual.top1, usual.log_wealth)
    assert found.whitebox is not None
