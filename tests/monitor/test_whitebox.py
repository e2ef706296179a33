import math
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim
from leakgauge.measures.membership import Rate, auc, auc_interval
from leakgauge.models.lenet import LeNet
from leakgauge.monitor import whitebox
from leakgauge.monitor.head import head_products, linear_owner
from leakgauge.monitor.whitebox import (
    Pooled,
    Protection,
    WhiteBox,
    last_layers,
    per_sample_gradients,
    preserve_randomness,
    probe,
    whole_gradient,
    without_hooks,
)

SIDE = 16


@pytest.fixture
def case():
    """A LeNet, the gradient of 8 members, and 24 others."""
    rng = torch.Generator().manual_seed(0)
    model = LeNet(in_channels=1, side=SIDE)
    x, y = torch.rand(32, 1, SIDE, SIDE, generator=rng), torch.randint(10, (32,), generator=rng)
    signal = dict(Gradient()(Victim(model, Pixels((1, SIDE, SIDE))), x[:8], y[:8]))
    return model, signal, (x[:8], y[:8]), (x[8:], y[8:])


def found(case, *, signal=None, protection=None):
    model, whole, members, others = case
    return probe(
        model,
        F.cross_entropy,
        whole if signal is None else signal,
        members,
        others,
        protection=protection or Protection(),
        step=1,
        seed=0,
    )


@pytest.mark.parametrize("protection", [Protection(), Protection(noise=1e-12), Protection(clip=1e9)], ids=repr)
def test_members_are_told_exactly_without_noise(case, protection):
    result = found(case, protection=protection)
    assert result.auc.value == result.tpr.value == 1.0
    assert result.auc.low == pytest.approx(0.025 ** (1 / 8), abs=1e-6)


def test_gradients_that_nearly_depend_on_each_other_are_still_told_apart():
    """90 candidates for 98 dimensions (139 parameters, but the residuals of a softmax add up to zero).

    Least squares on the rows themselves, in double precision, finds the members.
    """
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(90, 1, 12, generator=rng), torch.randint(3, (90,), generator=rng)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40, 3))
    F.cross_entropy(model(x[:10]), y[:10]).backward()
    signal = {name: p.grad for name, p in model.named_parameters()}
    result = found((model, signal, (x[:10], y[:10]), (x[10:], y[10:])))
    rows = torch.cat(
        [g.flatten(1) for g in per_sample_gradients(model, F.cross_entropy, tuple(signal), x, y, seed=0).values()], 1
    )
    whole = torch.cat([g.flatten() for g in signal.values()])
    weights = torch.linalg.lstsq(rows.T.double(), whole[:, None].double(), driver="gelsd").solution[:, 0]
    assert float((weights[:10, None] > weights[10:]).double().mean()) > 0.95
    assert result.auc.value > 0.95


def test_a_head_whose_weight_another_layer_holds_takes_the_long_way():
    """Its gradient has a share from the other layer's use, which the short cut does not see."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.first = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
            self.first.weight = self.head.weight

        def forward(self, x):
            return self.head(self.first(x).tanh())

    model = Tied()
    assert [name for name, _ in model.named_parameters()] == ["head.weight"]
    assert linear_owner(model, ("head.weight",)) is None
    assert linear_owner(nn.Sequential(nn.Linear(5, 5)), ("0.weight",)) is not None


def test_auc_falls_with_noise_to_chance(case):
    """σ is the length of the noise against the gradient's; the mean over eight draws falls at every doubling of scale."""
    _, whole, *_ = case
    norm = math.sqrt(sum(float(g.square().sum()) for g in whole.values()))
    entries = sum(g.numel() for g in whole.values())
    levels, draws = (0.0, 2.0, 8.0, 100.0), 8
    means, bounds = [], []
    for level in levels:
        sigma = level * norm / math.sqrt(entries)
        results = []
        for seed in range(draws):
            rng = torch.Generator().manual_seed(seed)
            noisy = {n: g + sigma * torch.randn(g.shape, generator=rng) for n, g in whole.items()}
            results.append(found(case, signal=noisy, protection=Protection(noise=sigma)))
        means.append(sum(r.auc.value for r in results) / draws)
        bounds.append(results[0].upper_nats)
    assert means[0] == 1.0
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.65
    assert bounds[0] is None  # without noise nothing is bounded
    assert bounds[1] > bounds[2] > bounds[3] > 0


def test_per_sample_gradients_are_those_of_single_samples(case):
    model, whole, (x, y), _ = case
    each = per_sample_gradients(model, F.cross_entropy, tuple(whole), x, y, seed=0)
    for i in range(3):
        alone = Gradient()(Victim(model, Pixels((1, SIDE, SIDE))), x[i : i + 1], y[i : i + 1])
        for name in whole:
            torch.testing.assert_close(each[name][i], alone[name], rtol=1e-4, atol=1e-6)


class Recurrent(nn.Module):
    """Cannot be mapped over samples by torch.func."""

    def __init__(self):
        super().__init__()
        self.rows, self.head, self.unused = nn.GRU(SIDE, 8, batch_first=True), nn.Linear(8, 4), nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.rows(x[:, 0])[0][:, -1])


def test_models_that_cannot_be_mapped_are_taken_sample_by_sample():
    model, x, y = Recurrent(), torch.rand(3, 1, SIDE, SIDE), torch.tensor([0, 3, 1])
    names = tuple(n for n, _ in model.named_parameters())
    each = per_sample_gradients(model, F.cross_entropy, names, x, y, seed=0)
    for i in range(3):
        alone = Gradient()(Victim(model, Pixels((1, SIDE, SIDE))), x[i : i + 1], y[i : i + 1])
        for name in names:
            torch.testing.assert_close(each[name][i], alone[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_of_numbers(dtype):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, 4)).to(dtype)
    x, y = torch.rand(8, 1, SIDE, SIDE, dtype=dtype), torch.arange(8) % 4
    sent = Gradient()(Victim(model, Pixels((1, SIDE, SIDE))), x[:4], y[:4])
    assert found((model, sent, (x[:4], y[:4]), (x[4:], y[4:]))).auc.value == 1.0


def test_the_short_cut_of_the_head_equals_the_long_way(case):
    model, whole, (x, y), _ = case
    names = ("fc.weight", "fc.bias")
    layer = linear_owner(model, names)
    assert layer is model.fc
    short = head_products(model, layer, F.cross_entropy, names, whole, x, y)
    each = per_sample_gradients(model, F.cross_entropy, names, x, y, seed=0)
    rows = torch.cat([each[n].flatten(1).double() for n in names], 1)
    flat = torch.cat([whole[n].flatten().double() for n in names])
    assert short is not None
    torch.testing.assert_close(short.gram, rows @ rows.T, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(short.cross, rows @ flat, rtol=1e-4, atol=1e-6)


def test_a_head_that_is_used_twice_takes_the_long_way():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.fc(x).tanh())

    model = Twice()
    x, y = torch.randn(3, 4), torch.tensor([0, 1, 2])
    signal = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    assert head_products(model, model.fc, F.cross_entropy, tuple(signal), signal, x, y) is None


def test_clipping_is_known_to_the_adversary(case):
    """Mean of clipped gradients: with the norm known the members come out exactly, although lengths differ."""
    model, whole, (x, y), others = case
    each = per_sample_gradients(model, F.cross_entropy, tuple(whole), x, y, seed=0)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    clip = float(norms.median())
    scale = (clip / norms).clamp_max(1)
    clipped = {n: (g * scale.view(-1, *[1] * (g.ndim - 1))).mean(0) for n, g in each.items()}
    result = probe(model, F.cross_entropy, clipped, (x, y), others, protection=Protection(clip=clip), step=1, seed=0)
    assert result.auc.value == 1.0


def test_model_and_generators_are_left_as_they_were(case):
    model, _, members, others = case
    fired = []
    model = nn.Sequential(model, nn.Dropout(0.5), nn.BatchNorm1d(10)).train()
    model[1].eval()
    model[0].register_forward_hook(lambda *_: fired.append(1))
    signal = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    modes = [m.training for m in model.modules()]
    state = {n: t.clone() for n, t in model.state_dict().items()}
    before = torch.get_rng_state()
    result = probe(model, F.cross_entropy, signal, members, others, protection=Protection(), step=1, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(t, state[n]) for n, t in model.state_dict().items())
    assert fired == []
    assert len(model[0]._forward_hooks) == 1
    assert all(p.grad is None for p in model.parameters())
    assert any("eval mode" in note for note in result.notes)


def test_a_module_at_two_places_keeps_the_users_parameters():
    """Else the optimiser would go on moving tensors that the model no longer reads."""
    twice = nn.Linear(6, 6)
    model = nn.Sequential(twice, nn.Tanh(), twice, nn.Tanh(), nn.Linear(6, 3))
    before = {name: id(p) for name, p in model.named_parameters()}
    x, y = torch.rand(4, 6), torch.tensor([0, 1, 2, 0])
    signal = dict(zip(before, torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())), strict=True))
    each = per_sample_gradients(model, F.cross_entropy, ("0.weight",), x, y, seed=0)
    assert head_products(model, model[4], F.cross_entropy, ("4.weight", "4.bias"), signal, x, y) is not None
    assert {name: id(p) for name, p in model.named_parameters()} == before
    torch.testing.assert_close(each["0.weight"].mean(0), signal["0.weight"])


def test_hooks_and_modes_come_back_after_an_error(case):
    model, *_ = case
    model.train()
    model.register_forward_hook(lambda *_: None)
    with pytest.raises(RuntimeError), without_hooks(model):
        raise RuntimeError
    assert model.training
    assert len(model._forward_hooks) == 1


def test_generators_of_python_and_numpy_do_not_move():
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with preserve_randomness(0, torch.device("cpu")):
        drawn = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
    assert len(drawn) == 3
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002


def test_what_is_read_of_large_models(monkeypatch):
    sizes = {"first": 10_000, "middle": 300, "norm": 20, "head": 3000}
    assert last_layers(sizes, 40) == ("head",)
    assert last_layers(sizes, 400) == ("middle", "norm", "head")  # eight entries per candidate
    assert whole_gradient(sizes, 40) == tuple(sizes)
    monkeypatch.setattr(whitebox, "FLOATS", 40 * 500)
    assert whole_gradient(sizes, 40) == ("middle", "norm")
    assert whole_gradient(sizes, 40, 40 * 20_000) == tuple(sizes)  # more room by request
    assert last_layers(sizes, 40) == ("middle", "norm")  # a head of a large vocabulary is passed over


def test_probes_are_pooled_over_time():
    """Eight looks of 32 pairs: the pooled area is their mean, and its interval that of 256 pairs."""
    areas = (0.58, 0.82, 0.89, 0.79, 0.7, 0.75, 0.8, 0.67)
    pooled = Pooled()
    assert pooled.auc is None
    for step, value in enumerate(areas):
        rate = Rate(value, *auc_interval(value, 32, 40))
        pooled = pooled.add(WhiteBox(step, rate, rate, members=32, others=40, layers=1, upper_nats=None, notes=()))
    found = pooled.auc
    assert found.value == pytest.approx(sum(areas) / 8)
    assert (found.low, found.high) == auc_interval(found.value, 256, 256)
    assert found.high - found.low < 0.2 < rate.high - rate.low


def test_the_pooled_interval_holds_the_mean_of_areas_that_differ():
    rng = torch.Generator().manual_seed(0)
    shifts, missed = torch.linspace(0, 2, 6), 0
    truth = float(torch.special.ndtr(shifts / 2**0.5).mean())
    for _ in range(100):
        pooled = Pooled()
        for shift in shifts:
            members, others = torch.randn(2, 16, generator=rng) + torch.tensor([[float(shift)], [0.0]])
            rate = auc(members, others)
            pooled = pooled.add(WhiteBox(0, rate, rate, members=16, others=16, layers=1, upper_nats=None, notes=()))
        missed += not pooled.auc.low <= truth <= pooled.auc.high
    assert missed <= 5
