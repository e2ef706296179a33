"""Batch statistics recovered from running ones against what really entered the layers, at any batch size and momentum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from leakgauge.errors import Inapplicable
from leakgauge.inversion.statistics import Moments, batch_moments, layer_moments, retained_weight

TYPES = {"double": torch.float64, "single": torch.float32}


def trained(norm: nn.Module, batches: list[torch.Tensor]) -> tuple[Moments, Moments, int]:
    """Running statistics before and after torch's own training-mode passes over the batches."""
    before = Moments(norm.running_mean.clone(), norm.running_var.clone())
    tracked = int(norm.num_batches_tracked)
    norm.train()
    for batch in batches:
        norm(batch)
    return before, Moments(norm.running_mean, norm.running_var), tracked


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(TYPES)),
    size=st.integers(1, 17),
    side=st.integers(1, 5),
    momentum=st.one_of(st.none(), st.floats(0.001, 1.0)),
    earlier=st.integers(0, 20),
    seed=st.integers(0, 10**6),
)
def test_the_batchs_own_statistics_are_recovered(kind, size, side, momentum, earlier, seed):
    """To 1e-5; in float32, where the shared value itself is rounded, to that rounding times 1 / (1 − w)."""
    if size * side * side < 2:
        size = 2
    dtype, rng = TYPES[kind], torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(3, momentum=momentum, dtype=dtype)
    norm.running_mean.normal_(generator=rng)
    norm.running_var.uniform_(0.5, 2, generator=rng)
    norm.num_batches_tracked.fill_(earlier)
    x = (2 * torch.randn(size, 3, side, side, generator=rng, dtype=torch.float64) + 1).to(dtype)
    before, after, tracked = trained(norm, [x])
    weight = retained_weight(momentum, updates=1, tracked=tracked)
    found = batch_moments(before, after, retained=weight, n=size * side * side)
    values = x.double().numpy()
    rounding = 8 * torch.finfo(dtype).eps * float(torch.stack([after.var, before.var]).max() + 3) / (1 - weight)
    tolerance = max(1e-5, rounding) if kind == "single" else 1e-5
    np.testing.assert_allclose(found.mean, values.mean((0, 2, 3)), atol=tolerance, rtol=0)
    np.testing.assert_allclose(found.var, values.var((0, 2, 3)), atol=tolerance, rtol=0)


@pytest.mark.parametrize("momentum", [0.1, 0.5, None], ids=str)
def test_usual_settings_in_single_precision_reach_1e_5(momentum):
    """Momentum 0.1 is torch's default; here float32 gives the promised 1e-5 without allowance."""
    norm = nn.BatchNorm2d(4, momentum=momentum)
    for size in (1, 2, 8, 64):
        x = torch.randn(size, 4, 6, 6, generator=torch.Generator().manual_seed(size))
        before, after, tracked = trained(norm, [x])
        found = batch_moments(
            before, after, retained=retained_weight(momentum, updates=1, tracked=tracked), n=36 * size
        )
        np.testing.assert_allclose(found.mean, x.double().mean((0, 2, 3)), atol=1e-5)
        np.testing.assert_allclose(found.var, x.double().var((0, 2, 3), unbiased=False), atol=1e-5)


def test_the_factor_counts_positions_not_images():
    """A factor (B − 1)/B would give a variance of zero for one image."""
    norm, x = nn.BatchNorm2d(1).double(), torch.arange(9.0).double().view(1, 1, 3, 3)
    before, after, tracked = trained(norm, [x])
    found = batch_moments(before, after, retained=0.9, n=9)
    assert float(found.var) == pytest.approx(60 / 9)
    assert tracked == 0


@pytest.mark.parametrize("momentum", [0.3, None], ids=str)
def test_several_updates_give_the_weighted_average(momentum):
    norm = nn.BatchNorm1d(2, momentum=momentum).double()
    norm.num_batches_tracked.fill_(4)
    batches = [torch.randn(7, 2, generator=torch.Generator().manual_seed(i), dtype=torch.float64) for i in range(3)]
    before, after, tracked = trained(norm, batches)
    found = batch_moments(before, after, retained=retained_weight(momentum, updates=3, tracked=tracked), n=7)
    weights = np.ones(3) / 3 if momentum is None else np.array([0.7**2, 0.7, 1]) * 0.3 / (1 - 0.7**3)
    means = np.stack([b.numpy().mean(0) for b in batches])
    variances = np.stack([b.numpy().var(0) for b in batches])
    np.testing.assert_allclose(found.mean, weights @ means, atol=1e-10)
    np.testing.assert_allclose(found.var, weights @ variances, atol=1e-10)


# --- what layers see ---------------------------------------------------------------------------------------------------


def normalised_by_hand(layer: nn.Module, x: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and variances of each row as the definition has them, in numpy."""
    found = []
    for row in x.double().numpy():
        if isinstance(layer, nn.GroupNorm):
            groups = row.reshape(len(row), layer.num_groups, -1)
            found.append((groups.mean(2).mean(0), groups.var(2).mean(0)))
        elif "2d" in type(layer).__name__ and isinstance(layer, nn.LayerNorm):
            found.append((row.mean(1).mean(keepdims=True).ravel(), row.var(1).mean(keepdims=True).ravel()))
        elif isinstance(layer, nn.LayerNorm):
            axes = tuple(range(-len(layer.normalized_shape), 0))
            found.append((np.array([row.mean(axes).mean()]), np.array([row.var(axes).mean()])))
        else:
            axes = (0, *range(2, row.ndim))
            found.append((row.mean(axes), row.var(axes)))
    return found


def layer_norm_2d() -> nn.LayerNorm:
    """timm's LayerNorm2d where timm is installed, else a class of the same shape."""

    class LayerNorm2d(nn.LayerNorm):
        def forward(self, input):
            return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    return LayerNorm2d(4)


LAYERS = {
    "batch 1d": (lambda: nn.BatchNorm1d(4), (4,)),
    "batch 1d tokens": (lambda: nn.BatchNorm1d(4), (4, 5)),
    "batch 2d": (lambda: nn.BatchNorm2d(4), (4, 3, 2)),
    "layer tokens": (lambda: nn.LayerNorm(6), (5, 6)),
    "layer of two axes": (lambda: nn.LayerNorm((3, 2)), (4, 3, 2)),
    "layer channels last": (lambda: nn.LayerNorm(6), (3, 2, 6)),
    "layer 2d": (layer_norm_2d, (4, 3, 2)),
    "group": (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_moments_against_numpy(name):
    make, shape = LAYERS[name]
    layer, x = make(), torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(1))
    found = layer_moments(layer, x)
    for row, (mean, var) in enumerate(normalised_by_hand(layer, x)):
        np.testing.assert_allclose(found.mean[row], mean, atol=1e-6)
        np.testing.assert_allclose(found.var[row], var, atol=1e-6)


def test_the_moments_of_timms_layer_norm_2d():
    from leakgauge.integrations.torchvision_guest import invite_torchvision

    invite_torchvision()
    layers = pytest.importorskip("timm.layers")
    layer, x = layers.LayerNorm2d(4), torch.randn(1, 3, 4, 5, 5)
    found = layer_moments(layer, x)
    np.testing.assert_allclose(found.mean, [[x.mean()]], atol=1e-6)
    np.testing.assert_allclose(found.var, [[x[0].var(1, unbiased=False).mean()]], atol=1e-6)


def test_other_layers_are_refused():
    with pytest.raises(Inapplicable, match="InstanceNorm2d"):
        layer_moments(nn.InstanceNorm2d(3), torch.randn(1, 2, 3, 4, 4))
