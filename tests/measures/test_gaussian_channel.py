import math

import numpy as np
import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.membership import membership_information


def exact(x: float, q: float, s: float) -> float:
    """I(b; bx + N(0, s²)) in nats by numerical integration."""
    at = np.linspace(-12 * s - x, 12 * s + x, 200_001)
    normal = [np.exp(-((at - m) ** 2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi)) for m in (0, x)]
    mixture = (1 - q) * normal[0] + q * normal[1]
    parts = [
        w * p * np.log(np.maximum(p, 1e-300) / mixture.clip(1e-300)) for w, p in zip((1 - q, q), normal, strict=True)
    ]
    return float(np.trapezoid(sum(parts), at))


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_bounds_the_exact_information_of_one_candidate(noise):
    bound = membership_information(torch.tensor([[1.0]]), rate=0.2, noise=noise)
    truth = exact(1.0, 0.2, noise)
    assert truth <= bound
    assert bound <= 1.1 * truth or noise < 3  # tight where noise prevails


def test_equals_the_determinant():
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = torch.eye(4) + 0.09 / 4.0 * x @ x.T
    assert membership_information(x @ x.T, rate=0.1, noise=2.0) == pytest.approx(0.5 * float(torch.logdet(matrix)))


def test_falls_with_noise_and_never_exceeds_the_entropy():
    gram = 100 * torch.eye(5, dtype=torch.float64)
    values = [membership_information(gram, rate=0.5, noise=s) for s in (0.0, 1e-3, 1.0, 10.0, 100.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] == values[1] == pytest.approx(5 * math.log(2))
    assert values[-1] < 0.01


@pytest.mark.parametrize(("rate", "noise"), [(0.0, 1.0), (1.0, 1.0), (0.5, -1.0), (0.5, math.nan)])
def test_refuses_what_makes_no_sense(rate, noise):
    with pytest.raises(BadInput):
        membership_information(torch.eye(2), rate=rate, noise=noise)
