"""t-SNE against autograd, the definition of perplexity, and clusters that are known."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import brentq

from leakgauge.errors import BadInput
from leakgauge.measures.tsne import affinities, principal_components, slope, tsne


@pytest.fixture
def clusters():
    rng = torch.Generator().manual_seed(0)
    centres = 12 * torch.randn(3, 1, 8, generator=rng)
    return (centres + torch.randn(3, 30, 8, generator=rng)).flatten(0, 1), torch.arange(3).repeat_interleave(30)


def test_the_gradient_is_that_of_the_divergence(clusters):
    joint = affinities(clusters[0], perplexity=10)
    y = torch.randn(90, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    near = 1 / (1 + (y[:, None] - y[None]).square().sum(2))
    near = near * (1 - torch.eye(90, dtype=torch.float64))
    q = near / near.sum()
    apart = ~torch.eye(90, dtype=torch.bool)
    (-joint[apart] * q[apart].log()).sum().backward()  # the other part of KL(P‖Q) does not depend on the map
    assert torch.allclose(slope(joint, y.detach()), y.grad, atol=1e-12)


def test_affinities_are_those_of_a_search_row_by_row(clusters):
    z = clusters[0][::3].double()
    count = len(z)
    rows = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        away = (z - z[i]).square().sum(1)

        def row(sigma, away=away, i=i):
            found = torch.exp(-(away - away[away > 0].min()) / (2 * sigma**2))
            found[i] = 0
            return found / found.sum()

        def excess(sigma, row=row):
            kept = row(sigma)[row(sigma) > 0]
            return 2 ** float(-(kept * kept.log2()).sum()) - 6

        rows[i] = row(brentq(excess, 0.05, 500, xtol=1e-12))
    assert torch.allclose(affinities(z, perplexity=6), (rows + rows.T) / (2 * count), atol=1e-9)


def test_affinities_sum_to_one_and_do_not_change_with_the_unit(clusters):
    ours = affinities(clusters[0], perplexity=10)
    assert float(ours.sum()) == pytest.approx(1)
    assert torch.equal(ours, ours.T)
    assert torch.allclose(ours, affinities(1e3 * clusters[0], perplexity=10), atol=1e-12)


def test_clusters_stay_apart_and_the_map_is_the_same_again(clusters):
    z, labels = clusters
    y = tsne(z, perplexity=10)
    assert torch.equal(y, tsne(z, perplexity=10))
    away = torch.cdist(y, y).fill_diagonal_(math.inf)
    assert torch.equal(labels[away.argmin(1)], labels)
    same = labels[:, None] == labels[None]
    assert away[~same].min() > away[same].masked_fill(away[same].isinf(), 0).median()


def test_principal_components_are_those_of_the_singular_values(clusters):
    z = clusters[0].double()
    found = principal_components(z, 2)
    left, values, _ = torch.linalg.svd(z - z.mean(0), full_matrices=False)
    assert torch.allclose(found.abs(), (left[:, :2] * values[:2]).abs(), atol=1e-9)


def test_equal_points_do_not_become_nan():
    assert torch.isfinite(tsne(torch.ones(20, 4), perplexity=5)).all()


@pytest.mark.parametrize("perplexity", [1.0, 50.0])
def test_an_impossible_perplexity(perplexity):
    with pytest.raises(BadInput, match="perplexity"):
        affinities(torch.randn(20, 3), perplexity=perplexity)
