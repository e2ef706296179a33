"""Losses other than cross entropy on class numbers: the observation is explained at the truth, and the search follows it downhill."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Labels, Pixels, Size, Victim, share
from leakgauge.inversion import L2, Cosine, Descent, Matching
from leakgauge.models.seeded import seeded


def network(outputs: int) -> nn.Module:
    with seeded(0):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, outputs)
        )  # fmt: skip


def segmenter() -> nn.Module:
    with seeded(0):
        return nn.Sequential(nn.Conv2d(1, 4, 3, 1, 1), nn.Sigmoid(), nn.Conv2d(4, 3, 3, 1, 1))


def contrastive(embedded: Tensor, y: Tensor) -> Tensor:
    apart, same = torch.cdist(embedded, embedded), (y[:, None] == y).to(embedded)
    return (same * apart.square() + (1 - same) * F.relu(2 - apart).square()).mean()


rng = torch.Generator().manual_seed(1)
LOSSES = {
    "regression": (network(1), lambda out, y: F.mse_loss(out.squeeze(1), y), torch.randn(3, generator=rng)),
    "several labels": (
        network(5),
        F.binary_cross_entropy_with_logits,
        torch.randint(2, (3, 5), generator=rng).float(),
    ),
    "segmentation": (segmenter(), F.cross_entropy, torch.randint(3, (3, 8, 8), generator=rng)),
    "contrastive": (network(6), contrastive, torch.tensor([0, 1, 0])),
    "soft labels": (network(4), F.cross_entropy, torch.randn(3, 4, generator=rng).softmax(1)),
}


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_replayed_exactly_and_followed(name, restarts):
    model, loss, y = LOSSES[name]
    victim = Victim(model, Pixels((1, 8, 8)), loss=loss)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    for channel in (Gradient(), FedAvg(steps=2, lr=0.05)):
        batch = 3 if isinstance(channel, Gradient) else 2
        seen = share(victim, channel, x[:batch], y[:batch], reveal=(Size(), Labels()))
        attack = Matching(Cosine(), solver=Descent(steps=15), restarts=restarts)
        assert attack.objective_at(victim, seen, x[:batch], y[:batch]) == pytest.approx(0, abs=1e-5)
        assert Matching(L2()).objective_at(victim, seen, 1 - x[:batch], y[:batch]) > 1e-8
        found = attack(victim, seen)
        assert found.loss < float(found.trace.losses[0].min())
