"""Properties of a batch, told from sketches of its update."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakgauge.channels import Aggregate, Features, FedAvg, Gradient
from leakgauge.core import Pixels, Victim
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import BadInput
from leakgauge.measures.membership import auc, auc_interval
from leakgauge.measures.sketch import SignBucket
from leakgauge.models.seeded import seeded
from leakgauge.monitor import Monitor, property_counts
from leakgauge.monitor.properties import Share, _batch, mean_inputs, property_leakage, site_leakage
from leakgauge.monitor.property_counts import fit_counts, own_gradients
from leakgauge.monitor.summary import summary

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
    assert found.tpr > 0.3
    assert abs(found.blind.value - 0.5) < 0.2  # labels know nothing of it
    assert found.leaks
    assert found.auc.value > found.null_interval[1]


def test_what_is_not_there_is_not_told():
    found = property_leakage(victim(), Gradient(), *data(planted=False), share_of=Share(0.0, 1.0), **QUICK)
    assert not found.leaks
    assert found.null_interval[0] < found.auc.value < found.null_interval[1]


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


def test_mean_inputs_are_a_mean_of_what_each_layer_read():
    x, y, _ = data(count=5)
    model = victim()
    sent = Gradient()(model, x, y)
    found = mean_inputs(sent)
    assert set(found) == {"1.weight", "3.weight"}
    singles = [Gradient()(model, x[k : k + 1], y[k : k + 1])["1.bias"] / 5 for k in range(5)]
    weights = torch.stack([one @ sent["1.bias"] for one in singles]) / sent["1.bias"].square().sum()
    assert float(weights.sum()) == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(found["1.weight"], weights @ x.flatten(1), atol=1e-4, rtol=1e-4)


def test_a_normalisation_behind_a_layer_gives_its_bias():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3))
    sent = Gradient()(Victim(model, Pixels((1, SIDE, SIDE))), *data(count=4)[:2])
    assert {name: len(value) for name, value in mean_inputs(sent).items()} == {"0.weight": 9, "3.weight": 64}


def test_rounds_add_up():
    areas = [
        property_leakage(
            [victim(seed) for seed in range(rounds)], Gradient(), *data(count=800), **{**QUICK, "shadows": 200}
        ).auc.value
        for rounds in (1, 5)
    ]
    assert areas[1] > areas[0]


def test_the_interval_counts_batches_that_share_no_sample():
    assert Share(0.2, 0.5).disjoint(100, 100, 8) == 100 // 11  # of a pair of batches 7 and 4 samples are without
    found = property_leakage(victim(), Gradient(), *data(count=200), **QUICK)
    assert found.disjoint <= 50 // 4
    low, high = auc_interval(found.auc.value, found.disjoint, found.disjoint)
    assert (found.auc.low, found.auc.high) == (low, high)


@pytest.mark.parametrize(("rounds", "clients"), [(3, 1), (1, 3), (2, 2)])
def test_a_test_of_several_rounds_or_clients_takes_a_batch_of_each(rounds, clients):
    channel = Aggregate(clients=clients) if clients > 1 else Gradient()
    x, y, has = data(count=400)
    found = property_leakage([victim()] * rounds, channel, x, y, has, **{**QUICK, "shadows": 40, "tests": 40})
    used = rounds * clients * 2 * 8  # samples of a pair of tests; a half of the data makes the tests
    assert found.disjoint * used <= len(x) / 2
    low, high = auc_interval(0.5, found.disjoint, found.disjoint)
    assert found.null_interval[0] <= low
    assert found.null_interval[1] >= high


def test_committed_rows_have_the_intervals_of_their_batches():
    """Their values were measured; the rest follows from these and from how many samples the half of the data for tests has."""
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "properties_cpu.jsonl"
    rows = [row for row in map(json.loads, file.read_text().splitlines()) if row["part"] != "sites"]
    rng = torch.Generator().manual_seed(1)
    torch.randperm(10_000, generator=rng)  # of KMNIST's test images
    those = int((torch.rand(4000, generator=rng) < 0.4).sum()) / 2
    for row in rows:
        share_of = Share(0.0, 1.0) if row["batch"] == 1 else Share()
        few = share_of.disjoint(round(those), round(2000 - those), row["batch"], row["rounds"] * row["clients"])
        assert row["disjoint"] == min(few, row["tests"] // 2), row["name"]
        low, high = auc_interval(row["auc"], row["disjoint"], row["disjoint"])
        assert (row["auc_low"], row["auc_high"]) == (pytest.approx(low), pytest.approx(high))
        chance = auc_interval(0.5, row["disjoint"], row["disjoint"])
        assert row["null"][0] <= chance[0] + 1e-9
        assert row["null"][1] >= chance[1] - 1e-9
        assert row["inside"] == (row["null"][0] <= row["auc"] <= row["null"][1])
        assert row["leaks"] == (row["auc_low"] > 0.5 and row["auc"] > row["null"][1] and row["auc_low"] > row["blind"])
    assert {row["disjoint"] for row in rows if row["rounds"] == 16} == {6}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"share_of": Share(0.2, 0.5), "batch": 0}, "batches of at least 1"),
        ({"shadows": 3}, "40 shadow updates"),
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


def test_the_count_is_read_where_a_linear_probe_of_the_layer_is_weak():
    """With one layer and ten classes, which sum of rows shows the count depends on the classes in the batch."""
    rng = torch.Generator().manual_seed(3)
    x, y = 0.3 * torch.rand(1200, 1, SIDE, SIDE, generator=rng), torch.randint(10, (1200,), generator=rng)
    has = torch.rand(1200, generator=rng) < 0.4
    x[has, :, :2, :2] = 1.0
    with seeded(0):
        head = Victim(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 10)), Pixels((1, SIDE, SIDE)))
    own, other = torch.arange(600), torch.arange(600, 1200)

    def batch(part, kind):
        return _batch(part, has, kind, share_of=Share(), size=32, clients=1, rng=rng)

    def send(places):
        return Gradient()(head, x[places], y[places])

    counts = fit_counts(
        head, ("1.weight", "1.bias"), x[own], y[own], has[own], lambda kind: batch(own, kind), send, seed=0
    )
    assert counts is not None
    drawn = [send(batch(other, kind)) for kind in (0, 1) * 60]
    read = torch.cat([counts(one) for one in drawn])
    assert auc(read[1::2], read[::2]).value > 0.95
    linear = torch.stack([mean_inputs(one)["1.weight"].view(SIDE, SIDE)[:2, :2].mean() for one in drawn])
    assert auc(linear[1::2], linear[::2]).value < 0.93
    scaled = fit_counts(  # a change of weights is the same up to its factor
        head, ("1.weight", "1.bias"), x[own], y[own], has[own], lambda kind: batch(own, kind),
        lambda places: FedAvg(steps=1, lr=0.1)(head, x[places], y[places]), seed=0,
    )  # fmt: skip
    assert scaled is not None
    changed = [FedAvg(steps=1, lr=0.1)(head, x[one], y[one]) for one in (batch(other, 1) for _ in range(20))]
    assert torch.cat([scaled(one) for one in changed]).mean() > 0


def test_updates_that_are_no_sums_over_samples_have_no_count(monkeypatch):
    x, y, has = data()
    layer, rng = ("3.weight", "3.bias"), torch.Generator().manual_seed(0)

    def fitted(send):
        draw = partial(_batch, torch.arange(len(has)), has, share_of=Share(), size=8, clients=1, rng=rng)
        return fit_counts(victim(), layer, x, y, has, draw, send, seed=0)

    def noisy(places):
        sent = Gradient()(victim(), x[places], y[places])
        return {
            name: value + 10 * value.norm() * torch.randn(value.shape, generator=rng) for name, value in sent.items()
        }

    asked = []
    monkeypatch.setattr(
        property_counts,
        "own_gradients",
        lambda *given, **_: asked.append(len(given[2])) or own_gradients(*given, seed=0),
    )
    assert fitted(noisy) is None
    assert asked == [8]  # one batch was enough to find out
    assert fitted(lambda places: {}) is None


def test_own_gradients_are_products_of_what_a_layer_read_and_its_output_gradient():
    x, y, _ = data(count=70)
    inputs, deltas = own_gradients(victim(), ("3.weight", "3.bias"), x, y, seed=0)
    for k in (0, 69):
        sent = Gradient()(victim(), x[k : k + 1], y[k : k + 1])
        torch.testing.assert_close(torch.outer(deltas[k], inputs[k]), sent["3.weight"])
        torch.testing.assert_close(deltas[k], sent["3.bias"])


class Largest(TorchDispatchMode):
    """The most numbers of any tensor that is made inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                self.numbers = max(self.numbers, one.numel())
        return made


def test_the_count_never_holds_the_gradients_of_a_large_layer_of_all_samples(monkeypatch):
    monkeypatch.setattr(property_counts, "BATCHES", 100)
    monkeypatch.setattr(property_counts, "AT_ONCE", 1 << 18)
    x, y, has = data(count=300)
    with seeded(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 100), nn.ReLU(), nn.Linear(100, 200))
    wide, rng = Victim(model, Pixels((1, SIDE, SIDE))), torch.Generator().manual_seed(0)
    draw = partial(_batch, torch.arange(len(has)), has, share_of=Share(), size=8, clients=1, rng=rng)
    with Largest() as largest:
        send = lambda places: Gradient()(wide, x[places], y[places])  # noqa: E731
        assert fit_counts(wide, ("3.weight", "3.bias"), x, y, has, draw, send, seed=0) is not None
    assert largest.numbers <= 1 << 18  # all together have 6 million


def test_the_site_of_an_update_is_found():
    rng = torch.Generator().manual_seed(0)
    sites, y = torch.arange(600) % 3, torch.randint(3, (600,), generator=rng)
    x = 0.5 * torch.rand(600, 1, SIDE, SIDE, generator=rng) + 0.15 * sites[:, None, None, None]
    options = {"batch": 8, "shadows": 120, "tests": 120, "sketch": SKETCH}
    found = site_leakage(victim(), Gradient(), x, y, sites, **options)
    assert found.top1.value > 0.8
    assert found.leaks
    assert found.chance == pytest.approx(1 / 3)
    assert found.disjoint == 3 * (100 // 8)
    mixed = sites[torch.randperm(600, generator=rng)]
    nothing = site_leakage(victim(), Gradient(), x, y, mixed, **options)
    assert not nothing.leaks
    assert nothing.top1.value < nothing.null_high


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sites": torch.zeros(400)}, "at least 2 sites, got 1"),
        ({"sites": torch.arange(400) % 2, "batch": 60}, "use a smaller batch"),
        ({"sites": torch.arange(400) % 2, "shadows": 30}, "20 shadow updates and tests for each of 2 sites"),
        ({"sites": torch.arange(400) % 2, "channel": Aggregate(clients=2)}, "adds several"),
    ],
)
def test_sites_that_cannot_be_asked_about_are_refused(given, why):
    x, y, _ = data()
    with pytest.raises(BadInput, match=why):
        site_leakage(victim(), x=x, y=y, **{"channel": Gradient(), **given})


def trained_with(has, *, steps=300, planted=True):
    """A training of which a monitor sees every update, with batches in which the property varies."""
    rng = torch.Generator().manual_seed(0)
    x, y, own = data(800, planted=planted)
    parts = [own.nonzero().flatten(), (~own).nonzero().flatten()]
    model = victim().model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = Monitor(every=100, has=has, sketch=SKETCH)
    for _ in range(steps):
        those = 2 + 4 * int(torch.randint(2, (1,), generator=rng))
        drawn = [
            part[torch.randperm(len(part), generator=rng)[:n]]
            for part, n in zip(parts, (those, 8 - those), strict=True)
        ]
        rows = torch.cat(drawn)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        monitor.update(x[rows], y[rows], {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return monitor.compute()


def test_the_monitor_has_a_column_for_a_property():
    found = trained_with(lambda x: x[:, 0, 0, 0] == 1)
    assert found.told is not None
    assert found.told > 0.7
    told = {name: value for name, value in found.scalars().items() if "property" in name}
    assert told == {"privacy/property/auc": found.told}  # no interval: the probe has seen these samples before
    said = summary(found, ())
    assert f"share of a property AUC {found.told:.2f}: updates" in said
    assert "samples recur after an epoch, and labels that go with the property may explain it" in said


def test_a_property_that_is_nowhere_in_the_samples_is_not_told():
    rng = torch.Generator().manual_seed(1)
    told = trained_with(lambda x: torch.rand(len(x), generator=rng) < 0.5).told
    assert told is not None
    assert abs(told - 0.5) < 0.2
    assert trained_with(None, steps=60).told is None
    assert trained_with(lambda x: x[:, 0, 0, 0] == 1, steps=30).told is None  # too few steps
