"""Priors against numpy, and at candidates where they must vanish."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge.attacks import inverting_gradients
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.inversion import BatchNormStatistics, Norm, TotalVariation
from leakgauge.inversion.terms import Candidate


def candidates(rows: int, size: int, seed: int = 0):
    return torch.randn(rows, size, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_total_variation_and_norm(victim_of, batch_of, seen_by, values_at, rows, size, seed):
    victim = victim_of()
    seen, x = seen_by(victim, Gradient(), *batch_of(size)), candidates(rows, size, seed)
    pixels = x.double().numpy()
    variation = [np.abs(np.diff(p, axis=-1)).mean() + np.abs(np.diff(p, axis=-2)).mean() for p in pixels]
    np.testing.assert_allclose(values_at(TotalVariation(), victim, seen, x), variation, rtol=1e-5)
    np.testing.assert_allclose(values_at(Norm(), victim, seen, x), (pixels**2).mean((1, 2, 3, 4)), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1, 9), (2, 9, 1), (3, 1, 1)])
def test_images_with_a_side_of_one_pixel_are_attacked_with_their_prior(shape):
    space = Pixels(shape)
    torch.manual_seed(0)
    victim = Victim(nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 4)), space)
    x = torch.rand(1, *shape)
    found = inverting_gradients(steps=3, restarts=2, tv=0.5)(victim, share(victim, Gradient(), x, torch.tensor([1])))
    assert bool(torch.isfinite(found.losses).all())
    variation = torch.diff(x.flatten(2)).abs().mean() if max(shape[1:]) > 1 else torch.tensor(0.0)
    torch.testing.assert_close(TotalVariation()(Candidate(x[None], victim, None))[0], variation)


def test_total_variation_of_known_pictures(victim_of, batch_of, seen_by, values_at):
    victim = victim_of()
    flat = torch.full((1, 1, 1, 6, 6), 0.7)
    ramp = torch.arange(6.0).expand(1, 1, 1, 6, 6) / 5
    seen = seen_by(victim, Gradient(), *batch_of(1))
    assert float(values_at(TotalVariation(), victim, seen, flat)) == 0
    assert float(values_at(TotalVariation(), victim, seen, ramp)) == pytest.approx(0.2)
    assert float(values_at(TotalVariation(), victim, seen, ramp.transpose(-1, -2))) == pytest.approx(0.2)


def two_norms(dimension: int = 2) -> nn.Module:
    if dimension == 1:
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 4))
    return nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


@pytest.mark.parametrize("dimension", [1, 2])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_statistics_prior_against_numpy(dimension, mode, victim_of, batch_of, seen_by, values_at):
    model = two_norms(dimension)
    norms = [m for m in model if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    victim = victim_of(model, mode=mode)
    x = candidates(2, 3, seed=4)
    expected = []
    for row in x:
        model.train(mode == "train")
        inputs: list[torch.Tensor] = []
        keep = partial(lambda kept, _, given_: kept.append(given_[0].detach()), inputs)
        handles = [m.register_forward_pre_hook(keep) for m in norms]
        stored = {n: b.clone() for n, b in model.named_buffers()}
        model(row)
        model.load_state_dict(stored, strict=False)
        for handle in handles:
            handle.remove()
        total = 0.0
        for norm, seen_input in zip(norms, inputs, strict=True):
            axes = (0, 2, 3) if seen_input.dim() == 4 else (0,)
            values = seen_input.double().numpy()
            total += np.linalg.norm(values.mean(axes) - norm.running_mean.numpy())
            total += np.linalg.norm(values.var(axes) - norm.running_var.numpy())
        expected.append(total)
    found = values_at(BatchNormStatistics(), victim, seen_by(victim, Gradient(), *batch_of(3)), x)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_statistics_prior_vanishes_at_the_right_statistics(victim_of, batch_of, seen_by, values_at):
    """A model whose running statistics are those of one batch: the prior is zero there, and grows away from it."""
    model, x = two_norms(), candidates(1, 3, seed=1)
    with torch.no_grad():
        first = model[0]
        first.running_mean.copy_(x.mean((0, 1, 3, 4)))
        first.running_var.copy_(x.var((0, 1, 3, 4), unbiased=False))
        inside = model[1](model.eval()[0](x[0]))
        model[2].running_mean.copy_(inside.mean((0, 2, 3)))
        model[2].running_var.copy_(inside.var((0, 2, 3), unbiased=False))
    victim = victim_of(model)
    seen = seen_by(victim, Gradient(), *batch_of(3))
    assert float(values_at(BatchNormStatistics(), victim, seen, x)) < 1e-5
    assert float(values_at(BatchNormStatistics(), victim, seen, 1.5 * x)) > 0.1


def test_statistics_prior_needs_statistics(tiny, victim_of, batch_of, seen_by, values_at):
    for model in (tiny(norm=False), nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), tiny(norm=False))):
        victim = victim_of(model)
        with pytest.raises(Inapplicable, match="no batch normalisation"):
            values_at(BatchNormStatistics(), victim, seen_by(victim, Gradient(), *batch_of(1)), candidates(1, 1))


def test_statistics_prior_that_is_not_required_is_zero_without_statistics(
    tiny, victim_of, batch_of, seen_by, values_at
):
    victim = victim_of(tiny(norm=False))
    seen = seen_by(victim, Gradient(), *batch_of(1))
    prior = BatchNormStatistics(required=False)
    assert float(values_at(prior, victim, seen, candidates(1, 1))) == 0
    assert "no running statistics" in prior.note(victim)
    normed = victim_of()
    seen = seen_by(normed, Gradient(), *batch_of(1))
    required, optional = (
        values_at(p, normed, seen, candidates(1, 1))
        for p in (BatchNormStatistics(), BatchNormStatistics(required=False))
    )
    assert torch.equal(required, optional)
    assert prior.note(normed) == ""
