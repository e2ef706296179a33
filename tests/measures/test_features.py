"""Radii, entropies, bounds and Fisher leakage against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures import features as entropy
from leakgauge.measures import features as radius
from leakgauge.measures.features import (
    NOT_A_GUARANTEE,
    class_radii,
    covariance_spectrum,
    decision_entropy,
    effective_rank,
    feature_entropy,
)

BY_HAND = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [0.0, 4.0], [0.0, 10.0]])
LABELS = torch.tensor([7, 7, 3, 3, 3])


def test_radii_by_hand():
    found = class_radii(BY_HAND, LABELS)
    # class 7: centre (1, 0), both at distance 1; class 3: centre (0, 6), distances 2, 2, 4
    assert found.per_class == {3: pytest.approx(8.0), 7: pytest.approx(1.0)}
    assert found.mean == pytest.approx(4.5)
    assert found.largest == pytest.approx(8.0)
    # mean (0.4, 3.6); squared deviations: (0.16*4 + 2.56) + (12.96*2 + 0.16*2 + 40.96) = 3.2 + 67.2
    assert found.total == pytest.approx(70.4 / 5)
    assert found.within == pytest.approx((2 + 24) / 70.4)
    assert found.dimensions == 2


def test_radii_in_blocks_and_of_any_shape(monkeypatch):
    z, y = torch.randn(12, 3, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    whole = class_radii(z, y)
    monkeypatch.setattr(radius, "AT_ONCE", 30)
    parts = class_radii(z, y)
    assert parts.within == pytest.approx(whole.within)
    assert parts.per_class == pytest.approx(whole.per_class)
    with pytest.raises(BadInput, match="one label per feature"):
        class_radii(z, y[:3])


def test_no_variance_within_a_class():
    found = class_radii(torch.tensor([[1.0], [1.0], [3.0]]), torch.tensor([0, 0, 1]))
    assert found.within == 0
    assert decision_entropy(found).nats == -math.inf


def test_bounds_by_hand():
    found = class_radii(BY_HAND, LABELS)
    features, decision = feature_entropy(found), decision_entropy(found)
    assert features.nats == pytest.approx(math.log(2 * math.pi * math.e * 14.08 / 2))
    assert decision.nats == pytest.approx(math.log(2 * math.pi * math.e * 8 / 2) + math.log(2))
    assert features.meaning == decision.meaning == NOT_A_GUARANTEE


def test_the_feature_bound_is_reached_by_a_round_gaussian():
    z = 3.0 * torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    exact = 2 * 0.5 * math.log(2 * math.pi * math.e * 9)
    assert feature_entropy(class_radii(z, torch.zeros(4000, dtype=torch.long))).nats == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize("count", [5, 50])
def test_spectrum_and_rank(count, monkeypatch):
    z = torch.randn(count, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.linalg.eigvalsh(torch.cov(z.T, correction=0)).flip(0)
    torch.testing.assert_close(covariance_spectrum(z)[:5], expected[:5])
    monkeypatch.setattr(entropy, "AT_ONCE", 12)
    torch.testing.assert_close(covariance_spectrum(z)[:5], expected[:5])
    assert effective_rank(torch.tensor([2.0, 2.0, 2.0, 2.0])) == pytest.approx(4)
    assert effective_rank(torch.zeros(3)) == 0
    with pytest.raises(BadInput, match="at least 2 samples"):
        covariance_spectrum(z[:1])
