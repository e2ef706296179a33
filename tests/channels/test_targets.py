"""Targets of some samples: boxes go with their images, whichever step, client or sample the images are dealt to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks import feasibility, federated_averaging, inverting_gradients
from leakgauge.channels import DPSGD, Aggregate, FedAvg, Gradient, ShuffledFedAvg
from leakgauge.channels.targets import of_samples
from leakgauge.core import Auxiliary, Labels, NoisyCopy, Pixels, Size, Victim, share
from leakgauge.engine import Observed
from leakgauge.engine.reference import Reference
from leakgauge.errors import BadInput
from leakgauge.inversion import Cosine, Descent, Matching, NearTruth
from tests.zoo import SmallDetector, box_loss

BOXES = {  # five boxes on two images, not sorted by image
    "boxes": torch.tensor([[5.0, 5, 40, 50], [10, 10, 60, 60], [1, 1, 20, 20], [2, 30, 30, 60], [8, 8, 24, 40]]),
    "classes": torch.tensor([1, 2, 0, 1, 2]),
    "image": torch.tensor([0, 1, 0, 1, 1]),
}


def of_image(i: int) -> dict[str, torch.Tensor]:
    """By hand: the boxes of one image, as a batch of that image alone has them."""
    rows = [n for n, image in enumerate(BOXES["image"].tolist()) if image == i]
    alone = {name: torch.stack([value[n] for n in rows]) for name, value in BOXES.items()}
    return {**alone, "image": torch.zeros(len(rows), dtype=torch.long)}


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def detector(mode="eval") -> Victim:
    return Victim(SmallDetector(), Pixels((3, 64, 64)), loss=box_loss, mode=mode)


def far(a, b) -> float:
    longest = max(float(value.norm()) for value in b.values())
    return max(float((a[name] - b[name]).norm()) for name in b) / longest


def test_one_step_on_all_boxes_is_the_gradient(images):
    """There are more boxes than images: none may be left out."""
    victim = detector("train")
    gradient = share(victim, Gradient(), images, BOXES).signal
    for channel in (FedAvg(steps=1, lr=0.5), FedAvg(steps=1, lr=0.5, order=(1, 0)), ShuffledFedAvg(lr=0.5, seed=3)):
        update = share(victim, channel, images, BOXES).signal
        assert far({name: value / -0.5 for name, value in update.items()}, gradient) < 1e-5


def test_each_minibatch_has_the_boxes_of_its_images(images):
    victim = detector()
    update = share(victim, FedAvg(steps=2, lr=0.1, minibatch=1), images, BOXES).signal
    at = victim.parameters()
    for i in range(2):
        moved = Victim(victim.model, victim.space, loss=victim.loss)
        moved.model.load_state_dict(at, strict=False)
        step = share(moved, Gradient(), images[i : i + 1], of_image(i)).signal
        at = {name: value - 0.1 * step[name] for name, value in at.items()}
    assert far(update, {name: value - victim.parameters()[name] for name, value in at.items()}) < 1e-5


def test_clients_and_single_samples_have_the_boxes_of_their_images(images):
    victim = detector()
    alone = [share(victim, Gradient(), images[i : i + 1], of_image(i)).signal for i in range(2)]
    mean = {name: (alone[0][name] + alone[1][name]) / 2 for name in alone[0]}
    assert far(share(victim, Aggregate(clients=2), images, BOXES).signal, mean) < 1e-5
    assert far(share(victim, DPSGD(clip=1e6, noise=0), images, BOXES).signal, mean) < 1e-5


@pytest.mark.parametrize(
    "channel",
    [
        FedAvg(steps=2, lr=0.1, minibatch=1),
        FedAvg(steps=2, lr=0.1, order=(1, 0)),
        FedAvg(steps=2, lr=0.1),
        Aggregate(clients=2),
        DPSGD(clip=1.0, noise=0.0),
        ShuffledFedAvg(epochs=2, lr=0.1, minibatch=1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_replay_with_known_boxes_gives_them_to_the_same_steps(channel, restarts, images):
    """At the truth itself the replayed signal is the observed one, so that the loss of the first step is zero."""
    victim = detector()
    seen = share(victim, channel, images, BOXES, reveal=[Size(), Labels(), NoisyCopy(0.0)])
    attack = Matching(Cosine(), start=NearTruth(), solver=Descent(steps=1), restarts=restarts)
    assert float(attack(victim, seen).trace.losses[0].max()) < 1e-4


def test_secret_epochs_over_images_with_boxes(images):
    victim = detector()
    channel = ShuffledFedAvg(epochs=2, lr=0.1, minibatch=1, seed=4)
    seen = share(victim, channel, images, BOXES, reveal=[Size(), Labels()])
    found = federated_averaging(steps=2)(victim, seen)
    assert found.x.shape == images.shape
    assert found.y is None
    assert "2 epochs of 2 images" in found.notes[-1]


def test_statistics_by_proxy_under_dpsgd_are_of_the_whole_batch():
    """Samples are mapped over one by one; what a layer saw then is no tensor that can be kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    victim = Victim(model, Pixels((1, 8, 8)), mode="train")
    x, y = torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2])
    seen = share(victim, DPSGD(noise=0), x, y, reveal=[Size(), Labels(), Auxiliary(torch.rand(8, 1, 8, 8))])
    found = feasibility(steps=2)(victim, seen)
    assert "statistics: proxy" in found.notes[-1]


@pytest.mark.parametrize("channel", [FedAvg(minibatch=1), Aggregate(), DPSGD(noise=0)], ids=repr)
def test_what_is_captured_is_of_all_samples(channel):
    torch.manual_seed(0)
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), Pixels((1, 2, 2)))
    x, y = torch.randn(1, 2, 1, 2, 2), torch.tensor([[0, 1]])
    observed = Observed.check(channel(victim, x[0], y[0]), victim, None)
    assert torch.equal(Reference(victim, channel, observed, ("1",))(x, y).inputs("1"), x.flatten(2))


def test_two_heads_are_cut_row_by_row():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x):
            return self.one(x.flatten(1)), self.two(x.flatten(1))

    def loss(scores, y):
        return F.cross_entropy(scores[0], y["kind"]) + F.cross_entropy(scores[1], y["side"])

    torch.manual_seed(0)
    victim = Victim(Heads(), Pixels((1, 2, 2)), loss=loss)
    x, y = torch.rand(4, 1, 2, 2), {"kind": torch.tensor([0, 1, 2, 0]), "side": torch.tensor([0, 1, 1, 0])}
    seen = share(victim, FedAvg(steps=2, minibatch=2), x, y, reveal=[Size(), Labels()])
    assert inverting_gradients(steps=2)(victim, seen).x.shape == x.shape
    with pytest.raises(BadInput, match="4 samples, but there are 3 'side' among the targets"):
        share(victim, FedAvg(steps=2, minibatch=2), x, {**y, "side": y["side"][:3]})


def test_a_sample_named_twice_keeps_its_objects():
    found = of_samples(BOXES, torch.tensor([1, 0, 1]), samples=2)
    assert found["image"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert found["classes"].tolist() == [2, 1, 2, 1, 0, 2, 1, 2]


def test_an_image_without_objects():
    found = of_samples(BOXES, [2, 0], samples=3)
    assert found["image"].tolist() == [1, 1]
    assert of_samples(BOXES, [2], samples=3)["boxes"].shape == (0, 4)


@pytest.mark.parametrize(
    ("channel", "y"),
    [(FedAvg(steps=2), torch.tensor([0, 1, 1])), (Aggregate(), torch.tensor([0])), (FedAvg(), torch.tensor(1))],
)
def test_a_target_for_each_sample(channel, y):
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)), Pixels((1, 2, 2)), loss=lambda out, y: out.mean())
    with pytest.raises(BadInput, match="the batch has 2 samples, but there are"):
        share(victim, channel, torch.rand(2, 1, 2, 2), y)
