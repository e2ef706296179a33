"""Samples of a batch from the gradient of a first layer with a ReLU, and certificates that must never be wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakgauge.attacks import relu_batches
from leakgauge.attacks.relu_batches import Factors, _null_space, separate, sparse_columns
from leakgauge.channels import Aggregate, FedAvg, Gradient
from leakgauge.core import Auxiliary, Size, Victim, share
from leakgauge.data.embedded import fashion
from leakgauge.defenses import GaussianNoise, Prune, WithholdNames
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.models import CNN, MLP
from tests.attacks.fashion_batches import SPACE, batch, decibels


@pytest.mark.parametrize(
    ("channel", "size"), [(Gradient(), 12), (FedAvg(steps=1, lr=0.1), 6), (Aggregate(clients=2), 6)], ids=repr
)
def test_a_whole_batch_comes_back_exactly_and_certified(channel, size):
    victim, (x, y) = Victim(MLP(hidden=(512, 256)), SPACE), batch(size)
    found = relu_batches()(victim, share(victim, channel, x, y))
    assert found.certified is not None
    assert found.certified.all()
    assert decibels(x, found.x).min() >= 60
    assert dict(found.stated)["samples certified"] == f"{size} of {size}"


@pytest.mark.parametrize("seed", range(10))
def test_no_certificate_is_false_where_the_search_struggles(seed):
    """Few units; and two classes after one hidden layer: δ_i − c·δ_j has more zeros than either, since both are multiples of one vector."""
    hidden, classes = ((64, 32), 4) if seed % 2 else ((128,), 2)
    victim, (x, y) = Victim(MLP(hidden=hidden, classes=classes, seed=seed), SPACE), batch(4 + seed, seed)
    found = relu_batches(rounds=4)(victim, share(victim, Gradient(), x, y % classes), seed=seed)
    assert found.x.shape == x.shape
    assert found.certified is not None
    assert (decibels(found.x[found.certified], x) >= 60).all()


def test_equal_images_count_once():
    victim, (x, y) = Victim(MLP(hidden=(256, 128)), SPACE), batch(5)
    x, y = torch.cat([x, x[:1]]), torch.cat([y, (y[:1] + 1) % 10])
    found = relu_batches()(victim, share(victim, Gradient(), x, y))
    assert found.certified is not None
    assert found.certified.tolist() == [True] * 5 + [False]
    assert decibels(x, found.x).min() >= 60
    assert dict(found.stated)["rank of the gradient"] == "5, for 6 samples"
    grey = SPACE.encode(torch.full((1, 1, 28, 28), 0.5))
    torch.testing.assert_close(found.x[5:], grey)


def made(size: int, units: int = 200, inputs: int = 40) -> tuple[Factors, Tensor, Tensor, Tensor]:
    """Factors of a made-up gradient in float64, the columns q of its samples (unit length), [W, b] and the inputs."""
    rng = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(size, inputs, generator=rng), torch.ones(size, 1)], 1).double()
    rows = torch.randn(units, inputs + 1, generator=rng).double()
    delta = torch.randn(units, size, generator=rng).double() * (rows @ x.T > 0)
    gradient = delta @ x
    split = Factors.of(gradient[:, :-1], gradient[:, -1], size)[0]
    q = split.u.T @ delta
    return split, q / q.norm(dim=0), rows, x


def test_sparse_columns_are_those_of_the_samples():
    split, truth, *_ = made(6)
    found = sparse_columns(split, starts=32, rounds=10, rng=torch.Generator().manual_seed(1))
    assert found.shape[1] >= 5
    assert (found.T @ truth).abs().amax(1).min() > 1 - 1e-9


def test_a_mixture_that_few_rows_set_apart_is_not_a_column():
    """U q is zero where both columns are, and in one row more by the choice of the factor."""
    split, truth, *_ = made(6)
    both = split.zeros(truth[:, :2]).all(1)
    pin = int((~split.zeros(truth[:, :2])).all(1).nonzero()[0])
    zero = both.clone()
    zero[pin] = True
    space = _null_space(split, zero)
    assert space.shape[1] == 2
    assert torch.linalg.matrix_rank(torch.cat([space, truth[:, :2]], 1), rtol=1e-8) == 2
    assert _null_space(split, split.zeros(truth[:, 0])).shape[1] == 1
    assert _null_space(split, torch.ones(split.units, dtype=torch.bool)).shape[1] == 0


def test_the_last_sample_follows_from_the_others_and_two_missing_ones_are_not_certified():
    split, truth, rows, x = made(6)
    one = separate(split, truth[:, :5], rows)
    assert one.consistent.all()
    torch.testing.assert_close(one.inputs, x, rtol=1e-6, atol=1e-6)
    assert not separate(split, truth[:, :4], rows).consistent.all()


def convolutional(width: int = 12) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, width, 5, 2, 2), nn.ReLU(), nn.Conv2d(width, width, 5, 2, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width * 49, 128), nn.ReLU(), nn.Linear(128, 10))


def test_behind_convolutions_the_inputs_of_the_layer_are_exact_and_lead_to_the_images():
    victim, (x, y) = Victim(convolutional(32), SPACE), batch(4)
    found = relu_batches()(victim, share(victim, Gradient(), x, y))
    assert dict(found.stated)["inputs of 5 certified"] == "4 of 4"
    assert found.certified is None  # the inputs are proven, the images are not
    assert decibels(x, found.x).min() >= 25
    with torch.no_grad():
        true, made = (victim.model[:5](one) for one in (x, found.x))
    assert float(torch.cdist(true, made).amin(1).max() / true.norm(dim=1).min()) < 0.05


def test_a_model_that_cannot_be_cut_is_refused_with_the_reason():
    victim, (x, y) = Victim(convolutional(32), SPACE, mode="train"), batch(4)
    with pytest.raises(Inapplicable, match=r"cannot be cut before 5.*eval mode"):
        relu_batches()(victim, share(victim, Gradient(), x, y))


def test_similar_images_help_where_convolutions_lose_much():
    victim, (x, y) = Victim(convolutional(12), SPACE), batch(4)
    others = SPACE.encode(fashion("train")[0][:200])
    plain, helped = (
        relu_batches()(victim, share(victim, Gradient(), x, y, reveal=reveal))
        for reveal in ((Size(),), (Size(), Auxiliary(others)))
    )
    assert decibels(x, helped.x).mean() > decibels(x, plain.x).mean() + 3


def activated(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), layer, nn.Linear(64, 10))


@pytest.mark.parametrize(
    ("model", "size", "channel", "defenses", "message"),
    [
        (activated(nn.Sigmoid()), 2, Gradient(), (), "needs a ReLU after 1"),
        (activated(nn.LeakyReLU()), 2, Gradient(), (), "needs a ReLU after 1"),
        (activated(nn.ReLU()), 17, Gradient(), (), "at least 68 units"),
        (activated(nn.ReLU()), 2, FedAvg(steps=3, lr=0.1), (), "this update sums 3"),
        (activated(nn.ReLU()), 2, Gradient(), (GaussianNoise(relative=0.1),), "noisy, pruned or coarse"),
        (activated(nn.ReLU()), 2, Gradient(), (Prune(0.9),), "noisy, pruned or coarse"),
        (activated(nn.ReLU()), 2, Gradient(), (WithholdNames(("1.bias",)),), r"not shared: 1\.bias"),
        (CNN(), 2, Gradient(), (), "needs a ReLU after head"),
        (nn.Sequential(nn.Conv2d(1, 10, 28), nn.Flatten()), 2, Gradient(), (), "the model has none"),
        (convolutional(), 2, Gradient(), (WithholdNames(("5.bias",)),), r"not shared: 5\.bias"),
    ],
)
def test_refusals(model, size, channel, defenses, message):
    victim, (x, y) = Victim(model, SPACE), batch(size)
    with pytest.raises(Inapplicable, match=message):
        relu_batches()(victim, share(victim, channel, x, y, defenses=defenses))


@pytest.mark.parametrize("option", ["starts", "rounds"])
def test_options_must_be_positive(option):
    with pytest.raises(BadInput, match=f"at least one of {option}, got 0"):
        relu_batches(**{option: 0})
