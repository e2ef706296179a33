"""Differentially private SGD: against Opacus, against a loop in plain torch, and with noise as loud as it says."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.channels import DPSGD, FedAvg, Gradient
from leakgauge.core import Buffers, Pixels, Size, Victim, share
from leakgauge.engine import Observed
from leakgauge.engine.choose import choose
from leakgauge.errors import BadInput, Inapplicable


def one_by_one(model: nn.Module, x, y, *, clip: float) -> dict:
    """Plain torch: the mean of the samples' gradients, each scaled to at most ``clip``."""
    total = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for i in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        length = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for name, p in model.named_parameters():
            total[name] += p.grad * min(1.0, clip / float(length))
    return {name: value / len(x) for name, value in total.items()}


@pytest.mark.parametrize("clip", [0.2, 1.3, 50.0])
def test_against_plain_torch(tiny, victim_of, batch_of, same, clip):
    x, y = batch_of(5)
    model = tiny().eval()
    same(DPSGD(clip=clip, noise=0.0)(victim_of(model), x, y), one_by_one(model, x, y, clip=clip), tolerance=1e-5)


def test_against_opacus(tiny, victim_of, batch_of, same):
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    x, y = batch_of(6)
    model = tiny(norm=False)
    wrapped = GradSampleModule(tiny(norm=False))
    inner = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=0.7, expected_batch_size=6)
    F.cross_entropy(wrapped(x.clone().requires_grad_()), y).backward()
    optimizer.pre_step()
    theirs = {name.removeprefix("_module."): p.grad for name, p in wrapped.named_parameters()}
    # Opacus adds 1e-6 to the length before it divides
    same(DPSGD(clip=0.7, noise=0.0)(victim_of(model), x, y), theirs, tolerance=1e-5)


def test_without_clip_and_noise_it_is_the_gradient(victim_of, batch_of, same):
    victim, (x, y) = victim_of(), batch_of(3)
    same(DPSGD(clip=math.inf, noise=0.0)(victim, x, y), Gradient()(victim, x, y), tolerance=1e-6)


def test_noise_is_as_loud_as_it_says_and_stays_with_the_client():
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(144, 200)), Pixels((1, 12, 12)))
    x, y = torch.rand(4, 1, 12, 12, generator=torch.Generator().manual_seed(1)), torch.arange(4)
    channel = DPSGD(clip=0.5, noise=2.0, seed=3)
    seen = share(victim, channel, x, y)
    assert seen.channel == DPSGD(clip=0.5, noise=2.0, seed=None)
    clean = seen.channel(victim, x, y)
    noise = torch.cat([(seen.signal[name] - clean[name]).flatten() for name in clean])
    assert len(noise) == 29_000
    assert float(noise.std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.02)  # five deviations of its estimate
    assert abs(float(noise.mean())) < 5 * 0.25 / math.sqrt(29_000)
    other = DPSGD(clip=0.5, noise=2.0, seed=4)(victim, x, y)
    assert not torch.equal(other["1.bias"], seen.signal["1.bias"])


def test_a_gradient_of_zero_has_a_slope(victim_of, batch_of):
    x, y = batch_of(2)
    victim = victim_of(norm=False, loss=lambda out, y: 0.0 * out.sum())
    free = x.clone().requires_grad_()
    signal = DPSGD(noise=0.0)(victim, free, y)
    (slope,) = torch.autograd.grad(sum(value.square().sum() for value in signal.values()), free)
    assert bool(torch.isfinite(slope).all())


def test_batch_normalisation_in_train_mode_is_refused_by_name(victim_of, batch_of):
    x, y = batch_of(2)
    with pytest.raises(Inapplicable, match="1 normalises over the batch"):
        DPSGD()(victim_of(mode="train"), x, y)
    grouped = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 4))
    assert set(DPSGD()(victim_of(grouped, mode="train"), x, y)) == {n for n, _ in grouped.named_parameters()}


def test_it_has_no_buffers_to_reveal(victim_of, batch_of):
    with pytest.raises(BadInput, match="no buffers"):
        share(victim_of(), DPSGD(), *batch_of(2), reveal=(Size(), Buffers()))


def test_many_candidates_are_replayed_at_once(victim_of, batch_of):
    victim, (x, y) = victim_of(), batch_of(2)
    seen = share(victim, DPSGD(clip=0.3, noise=0.1), x, y)
    rows = torch.stack([x, 1 - x, 0.5 * x])
    labels = torch.stack([y] * 3)
    chosen = choose(victim, seen.channel, Observed.check(seen.signal, victim), rows, labels)
    assert chosen.note == "replay: vmap"  # it was compared with the reference, or it would say so
    names = dict.fromkeys(seen.signal, 1.0)
    alone = [sum(v.square().sum() for v in seen.channel(victim, one, y).values()) for one in rows]
    torch.testing.assert_close(chosen.replay(rows, labels).square(names), torch.stack(alone), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": 0.0}, "positive clip"),
        ({"clip": math.nan}, "clip as a number, got nan"),
        ({"noise": -1.0}, "noise multiplier of at least 0"),
        ({"noise": math.inf}, "noise multiplier of at least 0"),
        ({"clip": math.inf, "noise": 1.0}, "finite clip"),
    ],
)
def test_bad_options(options, said):
    with pytest.raises(BadInput, match=said):
        DPSGD(**options)


def test_one_step_of_it_is_no_weight_update():
    from leakgauge.channels.facts import is_weight_update, local_steps

    assert not is_weight_update(DPSGD())
    assert local_steps(DPSGD(), 4) == 1
    assert is_weight_update(FedAvg())
