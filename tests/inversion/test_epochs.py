"""Images of several epochs: the prior knows no order, and the result has one image per sample again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakgauge.attacks import federated_averaging
from leakgauge.audit import score
from leakgauge.channels import FedAvg, Gradient, ShuffledFedAvg
from leakgauge.core import Labels, Pixels, Size, share
from leakgauge.errors import BadInput
from leakgauge.inversion import EpochsAgree
from leakgauge.inversion.epochs import _average_epochs
from leakgauge.testing import tiny_case


def test_the_prior_against_the_double_sum(victim_of, batch_of, seen_by, values_at):
    victim = victim_of()
    x = torch.randn(2, 6, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    seen = seen_by(victim, Gradient(), *batch_of(6))
    expected = []
    for row in x.numpy():
        means = row.reshape(3, 2, 36).mean(1)
        expected.append(sum(((a - b) ** 2).mean() for a in means for b in means) / 9)
    np.testing.assert_allclose(values_at(EpochsAgree(3), victim, seen, x), expected, rtol=1e-5)


def test_the_prior_does_not_see_the_order(victim_of, batch_of, seen_by, values_at):
    victim, (x, _) = victim_of(), batch_of(3)
    seen = seen_by(victim, Gradient(), *batch_of(6))
    shuffled = torch.cat([x, x[[2, 0, 1]]])[None]
    assert float(values_at(EpochsAgree(2), victim, seen, shuffled)) < 1e-12


def test_folding_brings_every_epoch_back_to_the_first():
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    places = torch.tensor([[0, 1, 2], [2, 0, 1]])
    unrolled = x[places.flatten()]
    torch.testing.assert_close(_average_epochs(unrolled, torch.argsort(places, 1), Pixels((1, 4, 4))), x)


def test_unknown_orders_are_attacked_end_to_end():
    """Two epochs of two samples, one sample a step: better than the same attack without the signal."""
    victim, x, y = tiny_case("cnn", count=2)
    channel = ShuffledFedAvg(epochs=2, lr=0.01, minibatch=1, seed=4)
    seen = share(victim, channel, x, y, reveal=(Size(), Labels()))
    attack = federated_averaging(steps=120)
    found = attack(victim, seen, seed=1)
    assert found.x.shape == x.shape
    assert found.candidates.shape == (1, *x.shape)
    assert found.trace.snapshots.shape[1:] == x.shape
    assert found.y.tolist() == y.tolist()
    assert found.notes[-1] == "2 epochs of 2 images in unknown orders, paired and averaged"
    null = attack.blind()(victim, seen, seed=1)
    ours, nothing = (np.mean(score(r, x, y, space=victim.space).psnr) for r in (found, null))
    assert ours > nothing + 3


@pytest.mark.parametrize("channel", [Gradient(), FedAvg(steps=2, lr=0.01)], ids=repr)
def test_other_channels_are_plain_matching(channel):
    victim, x, y = tiny_case("cnn", count=2)
    seen = share(victim, channel, x, y, reveal=(Size(), Labels()))
    attack = federated_averaging(steps=3)
    assert torch.equal(attack(victim, seen).x, attack.matching(victim, seen).x)
    assert repr(attack.blind().objective) == "0.001 * TotalVariation()"


def test_a_negative_weight_is_refused():
    with pytest.raises(BadInput, match="must not be negative"):
        federated_averaging(agreement=-1.0)
