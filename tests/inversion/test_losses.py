"""Losses other than cross entropy on class numbers: the observation is explained at the truth, and the search follows it downhill."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Labels, Pixels, Size, Victim, share
from leakgauge.inversion import L2, Cosine, Descent, Joint, Matching
from leakgauge.inversion.free_targets import free_targets
from leakgauge.inversion.output_gradient import read_targets
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


READ = {
    "a number": (network(1), F.mse_loss, torch.tensor([[0.7]])),
    "several labels": (network(4), F.binary_cross_entropy_with_logits, torch.tensor([[1.0, 0.0, 0.0, 1.0]])),
    "several labels, as a module": (network(4), nn.BCEWithLogitsLoss(), torch.tensor([[0.0, 1.0, 0.0, 1.0]])),
}


@pytest.mark.parametrize("name", READ)
def test_the_targets_of_one_sample_are_read_from_the_gradient_at_its_output(name):
    model, loss, y = READ[name]
    victim, x = (
        Victim(model, Pixels((1, 8, 8)), loss=loss),
        torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(2)),
    )
    seen = share(victim, Gradient(), x, y)
    torch.testing.assert_close(read_targets(victim, seen, x), y, atol=1e-3, rtol=0)
    attack = Matching(objective=Cosine(), solver=Descent(steps=20), along=True)
    found = attack(victim, seen)
    assert found.y is not None
    assert found.y.shape == y.shape
    assert attack.objective_at(victim, seen, x, y) < 1e-5


def test_an_absolute_error_does_not_determine_its_targets():
    victim, x = Victim(network(1), Pixels((1, 8, 8)), loss=F.l1_loss), torch.rand(1, 1, 8, 8)
    assert read_targets(victim, share(victim, Gradient(), x, torch.tensor([[9.0]])), x) is None


@pytest.mark.parametrize(
    ("outputs", "loss", "y", "link"),
    [
        (1, F.mse_loss, torch.tensor([[0.5], [-1.0]]), "identity"),
        (3, F.binary_cross_entropy_with_logits, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]), "sigmoid"),
        (3, F.cross_entropy, torch.tensor([0, 2]), "softmax"),
    ],
)
def test_targets_of_a_batch_are_searched_with_it(outputs, loss, y, link):
    """Nothing is revealed but the batch size, and the search still goes downhill."""
    victim = Victim(network(outputs), Pixels((1, 8, 8)), loss=loss)
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    seen = share(victim, Gradient(), x, y)
    assert free_targets(victim).link == link
    found = Matching(objective=Cosine(), labels=Joint(), solver=Descent(steps=60))(victim, seen)
    assert found.y is not None
    assert found.y.shape == y.shape
    assert found.trace.losses[-1].min() < 0.5 * found.trace.losses[0].min()
    if link == "sigmoid":
        assert set(found.y.unique().tolist()) <= {0.0, 1.0}


def test_a_regression_with_several_outputs_is_not_told_from_classes():
    assert free_targets(Victim(network(3), Pixels((1, 8, 8)), loss=F.mse_loss)).link == "softmax"
