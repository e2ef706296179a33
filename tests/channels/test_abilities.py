"""What a channel can do is asked of the channel itself: one that nobody registered is understood like the package's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from leakgauge.channels import DPSGD, Aggregate, Features, FedAvg, Gradient, ShuffledFedAvg
from leakgauge.channels.facts import (
    clients,
    is_gradient,
    is_weight_update,
    local_steps,
    reseed,
    single_client,
    uses_whole_batch,
)
from leakgauge.core import (
    AddsClients,
    KeepsSecrets,
    LimitsBatch,
    PerSample,
    Protects,
    Reseeds,
    SendsGradient,
    TrainsLocally,
)

ABILITIES = {
    Gradient(): {SendsGradient},
    FedAvg(): {TrainsLocally},
    ShuffledFedAvg(): {TrainsLocally, Reseeds, KeepsSecrets, LimitsBatch},
    DPSGD(): {Protects, Reseeds, KeepsSecrets},
    Features("0"): {PerSample},
    Aggregate(): {AddsClients, SendsGradient, Reseeds, KeepsSecrets, LimitsBatch},
}
ALL = (AddsClients, KeepsSecrets, LimitsBatch, PerSample, Protects, Reseeds, SendsGradient, TrainsLocally)


@pytest.mark.parametrize("channel", ABILITIES, ids=repr)
def test_who_can_do_what(channel):
    assert {ability for ability in ALL if isinstance(channel, ability)} == ABILITIES[channel]


@dataclass(frozen=True)
class TwoSteps:
    """Somebody's own federated averaging: two steps, the halves of the batch one after the other."""

    lr: float = 0.5

    def __call__(self, victim, x, y):
        return FedAvg(steps=2, lr=self.lr, minibatch=len(x) // 2)(victim, x, y)

    def batches(self, samples):
        return [range(samples // 2), range(samples // 2, samples)]


@dataclass(frozen=True)
class Everyone:
    """Somebody's own sum of clients."""

    clients: int = 3
    of: object = TwoSteps()


def test_a_channel_of_ones_own_is_understood():
    assert is_weight_update(Everyone())
    assert clients(Everyone()) == 3
    assert single_client(Everyone()) == TwoSteps()
    assert local_steps(Everyone(), 12) == 2
    assert not uses_whole_batch(TwoSteps(), 4)
    assert not is_gradient(Everyone(), "eval")
    assert reseed(Everyone(), 1) == Everyone()


@pytest.mark.parametrize(
    ("channel", "steps"),
    [
        (FedAvg(steps=3, minibatch=2), [[0, 1], [2, 3], [0, 1]]),
        (FedAvg(steps=2, order=(2, 0, 3, 1)), [[2, 0, 3, 1]] * 2),
        (FedAvg(steps=2, minibatch=3), [[0, 1, 2], [3]]),
        (ShuffledFedAvg(epochs=2, minibatch=2), [[0, 1], [2, 3]] * 2),
        (ShuffledFedAvg(epochs=1, minibatch=4, seed=9), [torch.randperm(4, generator=torch.Generator().manual_seed(9)).tolist()]),
    ],
    ids=repr,
)  # fmt: skip
def test_the_samples_of_each_local_step(channel, steps):
    assert [list(step) for step in channel.batches(4)] == steps
    assert local_steps(channel, 4) == len(steps)


@pytest.mark.parametrize(
    ("channel", "whole"),
    [
        (Gradient(), True),
        (FedAvg(steps=2), True),
        (FedAvg(minibatch=8), True),
        (FedAvg(minibatch=2), False),
        (FedAvg(order=(1, 0, 2, 3)), False),
        (ShuffledFedAvg(epochs=2), True),
        (ShuffledFedAvg(epochs=2, minibatch=2), False),
        (Aggregate(2), False),
        (DPSGD(), False),
    ],
    ids=repr,
)
def test_whether_every_step_uses_the_whole_batch(channel, whole):
    assert uses_whole_batch(channel, 4) is whole


def test_a_sum_of_gradients_is_a_gradient_where_no_sample_changes_another():
    assert is_gradient(Aggregate(2), "eval")
    assert not is_gradient(Aggregate(2), "train")
    assert is_gradient(Aggregate(1), "train")
    assert not is_gradient(Aggregate(2, FedAvg()), "eval")


@pytest.mark.parametrize(
    ("channel", "taken", "refused"),
    [(ShuffledFedAvg(minibatch=3), (3, 6, 30), (1, 2, 4)), (Aggregate(4), (4, 5, 400), (1, 3))],
    ids=repr,
)
def test_the_batches_that_a_channel_takes(channel, taken, refused):
    assert all(size in channel.batch_sizes() for size in taken)
    assert not any(size in channel.batch_sizes() for size in refused)


def test_each_round_has_draws_of_its_own():
    assert reseed(DPSGD(seed=5), 2) == DPSGD(seed=7)
    assert reseed(DPSGD(seed=None), 2) == DPSGD(seed=None)
    assert reseed(Aggregate(3, ShuffledFedAvg(seed=1)), 2) == Aggregate(3, ShuffledFedAvg(seed=7))
    assert reseed(FedAvg(), 2) == FedAvg()
