"""Spectra of channels whose derivative is known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.spectrum import DEPTH, SPREAD, _few_directions, sketch_spectrum, spectrum


def test_a_linear_channel_has_the_singular_values_of_its_matrix() -> None:
    rng = torch.Generator().manual_seed(0)
    matrix = torch.randn(7, 12, generator=rng, dtype=torch.float64)
    found = spectrum(lambda x: matrix @ x.flatten(), torch.rand(3, 4, generator=rng))
    assert torch.allclose(found.values[:7], torch.linalg.svdvals(matrix))
    assert found.values[7:].tolist() == [0.0] * 5
    assert found.above(1e-9) == 7
    outside = torch.eye(12, dtype=torch.float64) - torch.linalg.pinv(matrix) @ matrix
    assert torch.allclose(found.lost(1e-9), outside.diag(), atol=1e-9)
    change = torch.rand(12, generator=rng, dtype=torch.float64)
    assert torch.allclose(found.kept(change, 1e-9), change - outside @ change, atol=1e-8)


@pytest.mark.parametrize(("rank", "few"), [(20, True), (21, False), (60, False)])
def test_few_directions_are_found_as_exactly_as_all(monkeypatch: pytest.MonkeyPatch, rank: int, few: bool) -> None:
    """What is found in a third of the directions holds all there is, or all are looked at."""
    monkeypatch.setattr("leakgauge.measures.spectrum.LARGE", 50)
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.randn(m, rank, generator=rng, dtype=torch.float64) for m in (90, 60))
    matrix = left * torch.logspace(0, -6, rank, dtype=torch.float64) @ right.T
    assert (_few_directions(matrix.T.contiguous()) is not None) is few
    found = spectrum(lambda x: matrix @ x, torch.rand(60, generator=rng))
    expected = torch.linalg.svdvals(matrix)
    assert torch.allclose(found.values, expected, rtol=1e-8, atol=1e-13 * float(expected[0]))
    assert torch.allclose(found.directions @ found.directions.T, torch.eye(60, dtype=torch.float64), atol=1e-12)
    assert torch.allclose((matrix @ found.directions.T).norm(dim=0), found.values, atol=1e-12 * float(expected[0]))
    outside = torch.eye(60, dtype=torch.float64) - torch.linalg.pinv(matrix, rtol=1e-12) @ matrix
    assert torch.allclose(found.lost(1e-10), outside.diag(), atol=1e-6)


def test_a_quadratic_channel_has_the_derivative_2x() -> None:
    x = torch.tensor([[0.5, 0.0], [2.0, 1.0]])
    found = spectrum(lambda x: x.flatten().square(), x)
    assert found.values.tolist() == [4.0, 2.0, 1.0, 0.0]
    assert found.scale == pytest.approx(math.sqrt((0.0625 + 16 + 1) / 4))


def test_the_limit_is_that_of_a_known_gaussian_problem() -> None:
    """x + s·noise with a prior of deviation τ has the posterior variance s²τ²/(s² + τ²)."""
    found = spectrum(lambda x: 3.0 * x.flatten(), torch.zeros(1, 5))
    s, prior = 0.3 / 3.0, SPREAD
    assert torch.allclose(
        found.variances(0.3), torch.full((5,), s**2 * prior**2 / (s**2 + prior**2), dtype=torch.float64)
    )
    assert found.psnr(1e9) == pytest.approx(-10 * math.log10(1 / 12))
    assert found.above(3.0 * SPREAD * 1.01) == 0
    assert found.above(3.0 * SPREAD * 0.99) == 5


def test_a_channel_that_says_nothing() -> None:
    found = spectrum(lambda x: torch.ones(3, dtype=torch.float64), torch.zeros(2, 2))
    assert found.values.tolist() == [0.0] * 4
    linear = spectrum(lambda x: 0.0 * x.flatten().sum()[None], torch.zeros(2))
    assert linear.above(1e-12) == 0


def test_the_gram_matrix_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(9, 6, generator=rng, dtype=torch.float64), torch.rand(6, generator=rng)
    whole = spectrum(lambda x: (matrix @ x).square(), x)
    monkeypatch.setattr("leakgauge.measures.spectrum.MOST_ENTRIES", 1)
    gram = spectrum(lambda x: (matrix @ x).square(), x)
    assert torch.allclose(gram.values, whole.values, rtol=1e-6)
    assert torch.allclose(gram.lost(0.1), whole.lost(0.1), atol=1e-6)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    found = spectrum(lambda x: x.flatten(), torch.zeros(2))
    with pytest.raises(BadInput, match="positive noise"):
        found.variances(0.0)
    monkeypatch.setattr("leakgauge.measures.spectrum.MOST_PRODUCTS", 3)
    with pytest.raises(BadInput, match="too large"):
        spectrum(lambda x: x.flatten(), torch.zeros(2))


def made(values: Tensor) -> Tensor:
    """A matrix with these singular values."""
    rng = torch.Generator().manual_seed(1)
    left, right = (
        torch.linalg.qr(torch.randn(len(values), len(values), generator=rng, dtype=torch.float64))[0] for _ in range(2)
    )
    return left * values.double() @ right


@pytest.mark.parametrize("noise", [1e-2, 3e-3, 1e-3])
@pytest.mark.parametrize("kind", ["half", "power", "geometric"])
def test_random_products_estimate_a_spectrum_or_say_that_they_do_not(kind: str, noise: float) -> None:
    values = {
        "half": torch.cat([torch.ones(200), torch.zeros(200)]),
        "power": 1 / torch.arange(1, 401.0),
        "geometric": torch.logspace(0, -8, 400),
    }[kind]
    matrix, x = made(values), torch.rand(400)
    exact = spectrum(lambda x: matrix @ x, x)
    found = sketch_spectrum(lambda x: matrix @ x, x)
    if not found.settled(noise):
        assert (kind, noise) in {("geometric", 1e-3), ("geometric", 3e-3), ("power", 1e-3)}
        return
    assert abs(found.above(noise) - exact.above(noise)) <= 4 * found.error(noise) + 0.02 * 400
    assert found.psnr(noise) == pytest.approx(exact.psnr(noise), abs=0.3)
    change = torch.rand(400, dtype=torch.float64) - 0.5
    assert float((found.kept(change, noise) - exact.kept(change, noise)).norm() / change.norm()) < 0.05


def test_products_that_miss_the_weak_directions_are_not_settled() -> None:
    """Eight decades need more than so many products: the estimate would be that everything is determined."""
    matrix = made(torch.logspace(0, -8, 400))
    found = sketch_spectrum(lambda x: matrix @ x, torch.rand(400))
    assert found.squares.shape[1] == DEPTH
    assert found.above(1e-6) == 400
    assert not found.settled(1e-6)


def test_a_sketch_of_a_channel_that_says_nothing() -> None:
    found = sketch_spectrum(lambda x: torch.ones(3, dtype=torch.float64), torch.zeros(2, 2))
    assert found.above(1e-3) == 0
    assert found.kept(torch.ones(4, dtype=torch.float64), 1e-3).tolist() == [0.0] * 4
