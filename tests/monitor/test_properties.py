"""Properties of a batch, told from sketches of its update."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.channels import Aggregate, Features, FedAvg, Gradient
from leakgauge.core import Pixels, Victim
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded
from leakgauge.monitor.properties import Share, property_leakage
from leakgauge.monitor.sketch import SignBucket

SIDE = 6
SKETCH = SignBucket(total=512)


def victim(seed=0):
    with seeded(seed):
        model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.ReLU(), nn.Linear(8, 3))
    return Victim(model, Pixels((1, SIDE, SIDE)))


def data(count=400, *, planted=True, seed=0):
    """Noise of three classes; those with the property have a bright corner."""
    rng = torch.Generator().manual_seed(seed)
    x = 0.6 * torch.rand(count, 1, SIDE, SIDE, generator=rng)
    y = torch.randint(3, (count,), generator=rng)
    has = torch.rand(count, generator=rng) < 0.5
    if planted:
        x[has, :, :2, :2] = 1.0
    return x, y, has


QUICK = {"batch": 8, "shadows": 120, "tests": 120, "sketch": SKETCH}


@pytest.mark.parametrize(
    "channel", [Gradient(), FedAvg(steps=2, lr=0.05), Features("1")], ids=["gradient", "fedavg", "features"]
)
def test_a_planted_property_is_told(channel):
    found = property_leakage(victim(), channel, *data(), share_of=Share(0.0, 1.0), **QUICK)
    assert found.auc.value > 0.85
    assert found.tpr.value > 0.3
    assert abs(found.blind.value - 0.5) < 0.2  # labels know nothing of it
    assert found.leaks
    assert found.p_value < 0.01


def test_what_is_not_there_is_not_told():
    found = property_leakage(victim(), Gradient(), *data(planted=False), share_of=Share(0.0, 1.0), **QUICK)
    assert 0.35 < found.auc.value < 0.65
    assert not found.leaks
    assert found.p_value > 0.02


def test_noise_and_other_clients_hide_it():
    plain, noisy, summed = (
        property_leakage(victim(), channel, *data(), share_of=Share(0.0, 1.0), defenses=defenses, **QUICK).auc.value
        for channel, defenses in [
            (Gradient(), ()),
            (Gradient(), (GaussianNoise(relative=30.0),)),
            (Aggregate(clients=8), ()),
        ]
    )
    assert noisy < plain - 0.2
    assert summed < plain


def test_a_property_of_the_labels_is_told_by_them_alone():
    x, y, _ = data(planted=False)
    found = property_leakage(victim(), Gradient(), x, y, y == 0, share_of=Share(0.0, 1.0), **QUICK)
    assert found.blind.value > 0.99
    assert not found.leaks  # not more than the labels


def test_updates_that_add_up_are_not_sent_again(monkeypatch):
    import leakgauge.monitor.properties as module

    sizes = []
    real = module.share
    monkeypatch.setattr(
        module, "share", lambda v, c, x, *more, **options: sizes.append(len(x)) or real(v, c, x, *more, **options)
    )
    found = property_leakage(victim(), Gradient(), *data(), **QUICK)
    assert sizes.count(8) == 1  # the batch that is compared with the mean of its samples
    assert sizes.count(1) <= 400
    sizes.clear()
    module._Seen._may_add_up, kept = lambda self: False, module._Seen._may_add_up
    try:
        direct = property_leakage(victim(), Gradient(), *data(), **QUICK)
    finally:
        module._Seen._may_add_up = kept
    assert sizes == [8] * 240
    assert abs(direct.auc.value - found.auc.value) < 0.1  # other noise seeds draw other batches


def test_rounds_add_up():
    x, y, has = data(count=600)
    x[has, :, :2, :2] = 0.6  # hard to tell in one round
    few = {**QUICK, "shadows": 60}
    areas = [
        property_leakage([victim(seed) for seed in range(rounds)], Gradient(), x, y, has, **few).auc.value
        for rounds in (1, 6)
    ]
    assert areas[1] > areas[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share_of": Share(0.2, 0.5), "batch": 0}, "batches of at least 1"),
        ({"shadows": 3}, "20 updates"),
        ({"batch": 390}, "use a smaller batch"),
    ],
)
def test_what_cannot_be_asked_is_refused(options, said):
    with pytest.raises(BadInput, match=said):
        property_leakage(victim(), Gradient(), *data(), **{**QUICK, **options})


def test_data_without_both_kinds_are_refused():
    x, y, has = data()
    with pytest.raises(BadInput, match="without, got 0"):
        property_leakage(victim(), Gradient(), x, y, torch.zeros_like(has), **QUICK)
    with pytest.raises(BadInput, match="one value per sample"):
        property_leakage(victim(), Gradient(), x, y, has[:5], **QUICK)
    with pytest.raises(BadInput, match="low < high"):
        Share(0.5, 0.2)
