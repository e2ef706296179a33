"""Eqs. 6-8 and Appendix D, against steps really taken, Jacobians really formed, and numbers by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.models.seeded import seeded
from reproductions.golden_partition_zone.smoothing import CodeSmoothing, PaperSmoothing
from reproductions.golden_partition_zone.training_log import (
    deviations,
    logits_along_deviations,
    radius_change,
    radius_change_by_class,
    smallest_singular_values,
    smoothing_limit,
    snapshot,
)

K, D = 3, 6


@pytest.fixture
def cloud():
    with seeded(0):
        return nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, K)).double()


@pytest.fixture
def data():
    return torch.randn(30, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(30) % K


def radii(z, labels):
    return torch.stack([(z[labels == c] - z[labels == c].mean(0)).square().sum(1).mean() for c in range(K)])


def gradients(cloud, z, labels, loss):
    inputs = z.clone().requires_grad_()
    return torch.autograd.grad(loss(cloud(inputs), labels) * len(z), inputs)[0]


def test_eq_6_is_the_first_order_of_a_step_really_taken(cloud, data):
    z, labels = data
    g = gradients(cloud, z, labels, F.cross_entropy)
    before = radii(z, labels)
    for rate, tolerance in ((1e-3, 1e-2), (1e-5, 1e-4)):
        taken = radii(z - rate * g, labels) - before
        torch.testing.assert_close(radius_change(z, labels, g, rate=rate, classes=K), taken, rtol=tolerance, atol=1e-12)


def test_pulls_equal_the_jacobian(cloud, data):
    z, labels = data
    jacobian = torch.func.vmap(torch.func.jacrev(cloud))(z)
    expected = torch.einsum("nkd,nd->nk", jacobian, deviations(z, labels, K))
    torch.testing.assert_close(logits_along_deviations(cloud, z, labels, K), expected)


def test_eq_7_equals_eq_6_for_one_hot_labels(cloud, data):
    z, labels = data
    p = cloud(z).softmax(1).detach()
    by_terms = radius_change_by_class(
        logits_along_deviations(cloud, z, labels, K), p, F.one_hot(labels, K).double(), labels, rate=0.1
    )
    g = gradients(cloud, z, labels, F.cross_entropy)
    torch.testing.assert_close(by_terms, radius_change(z, labels, g, rate=0.1, classes=K))


def test_eq_8_as_printed(cloud, data):
    """(p_c − 1 + α) T_corr + Σ_{k≠c} (p_k − α/K) T_k, summed sample by sample."""
    z, labels = data
    alpha, p, pulls = 0.3, cloud(z).softmax(1).detach(), logits_along_deviations(cloud, z, labels, K)
    expected = torch.zeros(K, dtype=torch.float64)
    for i, c in enumerate(labels.tolist()):
        expected[c] += (p[i, c] - 1 + alpha) * pulls[i, c]
        expected[c] += sum((p[i, k] - alpha / K) * pulls[i, k] for k in range(K) if k != c)
    expected *= -2 * 0.1 / 10
    found = radius_change_by_class(pulls, p, PaperSmoothing(alpha).targets(labels, K), labels, rate=0.1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_eq_8_is_the_change_of_the_loss_only_where_targets_sum_to_one(cloud, data):
    z, labels = data
    for smoothing, agrees in ((CodeSmoothing(0.3), True), (PaperSmoothing(0.3), False)):
        log = snapshot(cloud, z, labels, smoothing=smoothing, rate=0.1)
        assert (log.change_smoothed == pytest.approx(log.change, rel=1e-4)) is agrees


def test_smallest_singular_value_of_a_linear_cloud():
    weight = torch.diag(torch.tensor([3.0, 2.0, 0.5, 0.0, 0.0, 0.0]))[:3]
    layer = nn.Linear(D, K, bias=False)
    layer.weight.data = weight
    torch.testing.assert_close(smallest_singular_values(layer, torch.rand(4, D)), torch.full((4,), 0.5).double())


@pytest.mark.parametrize("alpha", [0.0, 0.3, -0.05])
def test_the_floor_of_appendix_d_holds(cloud, data, alpha):
    z, labels = data
    smoothing = CodeSmoothing(alpha)
    g = gradients(cloud, z, labels, smoothing).norm(dim=1)
    missing = (cloud(z).softmax(1) - smoothing.targets(labels, K)).norm(dim=1)
    assert (g >= smallest_singular_values(cloud, z) * missing - 1e-12).all()
    log = snapshot(cloud, z, labels, smoothing=smoothing, rate=0.1)
    assert log.gradient_norm >= log.gradient_floor


def test_smoothed_training_ends_where_the_gradient_vanishes_too():
    """p = y' is where a smoothed loss is smallest, and ∂L/∂z = 0 there: the paper's positive limit is not reached."""
    smoothing, labels = CodeSmoothing(0.3), torch.tensor([0, 1, 2])
    logits = smoothing.targets(labels, K).double().log()
    log = snapshot(nn.Identity(), logits, labels, smoothing=smoothing, rate=0.1)
    assert log.gradient_norm < 1e-6
    assert log.limit > 0.3


def test_snapshot_says_what_its_parts_say(cloud, data):
    z, labels = data
    log = snapshot(cloud, z, labels, smoothing=PaperSmoothing(0.3), rate=0.1, samples=5)
    assert log.radius == pytest.approx(radii(z, labels).tolist())
    assert log.confidence == pytest.approx(cloud(z).softmax(1)[torch.arange(30), labels].mean().item())
    g = gradients(cloud, z, labels, PaperSmoothing(0.3))
    assert log.change == pytest.approx(radius_change(z, labels, g, rate=0.1, classes=K).tolist())
    assert log.limit == pytest.approx(float(smallest_singular_values(cloud, z[:5]).mean()) * smoothing_limit(0.3, K))
