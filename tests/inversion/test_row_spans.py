"""The span test against matrices of known row space: rounding, noise, and more inputs than directions."""

import pytest
import torch

from leakgauge.inversion.row_spans import _median_value, precision, row_span


def gradient(inputs: int, *, width: int = 40, rows: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """G = Σ δ_p z_pᵀ in float32 with δ of very different sizes, and the inputs z, in float64."""
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(inputs, width, generator=rng)
    delta = torch.randn(rows, inputs, generator=rng) * torch.logspace(0, -2, inputs)
    return delta @ z, z.double()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("inputs", [5, 20, 36])
def test_inputs_are_in_the_span_and_others_are_not(inputs, seed):
    g, z = gradient(inputs, seed=seed)
    span = row_span([g], inputs=inputs)
    other = torch.randn(1000, 40, generator=torch.Generator().manual_seed(seed + 50)).double()
    assert inputs <= span.rank < 40
    assert not span.coarse
    assert span.holds(z).all()
    assert not span.holds(other).any()
    assert torch.equal(span.holds(other), span.outside(other) <= 1)
    assert span.chance(z) < 1e-12


def test_the_residual_is_that_of_least_squares():
    g, _ = gradient(7)
    span = row_span([g], inputs=7)
    vectors = torch.randn(4, 40, generator=torch.Generator().manual_seed(1)).double()
    kept = span.basis[:, : span.rank]
    scaled, vectors = g.double() * span.scale, vectors * span.scale
    fitted = torch.linalg.lstsq(scaled.T, vectors.T, driver="gelsd", rcond=1e-6).solution
    left = (vectors.T - scaled.T @ fitted).square().sum(0)
    own = (vectors - vectors @ kept @ kept.T).square().sum(1)
    torch.testing.assert_close(own, left, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("sigma", [1e-4, 1e-3])
def test_noise_is_measured_by_directions_that_no_input_fills(sigma):
    g, z = gradient(6)
    noise = sigma * torch.randn(g.shape, generator=torch.Generator().manual_seed(3))
    span = row_span([g + noise], inputs=6)
    assert span.coarse
    assert span.rank == 6
    edge = (torch.linalg.svdvals((g + noise).double())[5] / span.values[5]).item()  # the σ by which it was divided
    assert edge == pytest.approx(sigma, rel=0.1)
    assert span.holds(z).all()
    other = torch.randn(200, 40, generator=torch.Generator().manual_seed(8)).double()
    assert float(span.distance(z).max()) < 0.1 * float(span.distance(other).min())


def test_layers_that_read_the_same_are_taken_together():
    first, z = gradient(8, rows=5)
    second = torch.randn(6, 8, generator=torch.Generator().manual_seed(9)) @ z.float()
    alone, both = row_span([first], inputs=8), row_span([first, second], inputs=8)
    assert alone.saturated
    assert not alone.holds(z).any()
    assert not both.saturated
    assert both.holds(z).all()


def test_a_gradient_of_zeros_has_no_span():
    assert row_span([torch.zeros(3, 4)], inputs=2) is None


def test_outlying_rows_and_columns_do_not_hide_the_rank():
    """Trained networks have entries of δ and z that are a thousand times as large as others; rounding is relative to them."""
    rng = torch.Generator().manual_seed(2)
    z = torch.randn(12, 96, generator=rng) * torch.logspace(3, 0, 96)
    delta = torch.randn(80, 12, generator=rng) * torch.logspace(0, -3, 80)[:, None]
    g = delta @ z
    span = row_span([g], inputs=30)
    assert span.rank == 12
    assert not span.coarse
    assert span.holds(z.double()).all()
    others = torch.randn(500, 96, generator=rng) * torch.logspace(3, 0, 96)
    assert not span.holds(others.double()).any()


def test_noise_that_is_the_same_everywhere_is_not_scaled():
    g, _ = gradient(6)
    g = g * torch.logspace(0, -3, len(g))[:, None]
    noise = 1e-3 * torch.randn(g.shape, generator=torch.Generator().manual_seed(3))
    span = row_span([g + noise], inputs=6)
    assert torch.equal(span.scale, torch.ones(40).double())


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10)])
def test_bits_show_the_precision(dtype, expected):
    values = torch.randn(500, generator=torch.Generator().manual_seed(0))
    assert precision(values.to(dtype).float()) == expected == torch.finfo(dtype).eps
    assert precision(values.to(dtype).double()) == expected
    assert precision(values) == torch.finfo(torch.float32).eps
    assert precision(values.to(dtype)) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inputs", [20, 500])
def test_low_precision_is_known_where_no_direction_is_left_to_measure_it(dtype, inputs):
    """k and v of a model with few heads have fewer rows than the batch may have tokens: ``inputs`` is what it has room for."""
    rng = torch.Generator().manual_seed(4)
    z = torch.randn(20, 96, generator=rng)
    sent = [(torch.randn(rows, 20, generator=rng) @ z).to(dtype).float() for rows in (96, 32, 32)]
    span = row_span(sent, inputs=inputs)
    assert (span.rank, span.filled, span.coarse, span.clear) == (20, 20, True, True)
    assert span.holds(z.double()).all()
    assert not span.holds(torch.randn(1000, 96, generator=rng).double()).any()


def test_noise_of_a_gradient_that_is_almost_full_is_read_off_its_end():
    rng = torch.Generator().manual_seed(5)
    z = torch.randn(20, 96, generator=rng)
    sent = [torch.randn(rows, 20, generator=rng) @ z for rows in (96, 48, 48)]
    noisy = [g + 0.01 * torch.randn(g.shape, generator=rng) for g in sent]
    span = row_span(noisy, inputs=60)  # more than 48
    assert (span.rank, span.coarse, span.clear) == (20, True, True)
    assert span.holds(z.double()).all()
    assert not span.holds(torch.randn(1000, 96, generator=rng).double()).any()


def test_directions_that_noise_may_hide_are_said():
    """Sizes from 1 to 10⁻⁴ without a gap: some are below the noise, and the weakest that is seen is near it."""
    rng = torch.Generator().manual_seed(6)
    z, delta = torch.randn(40, 96, generator=rng), torch.randn(96, 40, generator=rng) * torch.logspace(0, -4, 40)
    sent = delta @ z
    assert row_span([sent], inputs=60).clear
    noisy = row_span([sent + 0.01 * torch.randn(sent.shape, generator=rng)], inputs=60)
    assert noisy.rank < 40
    assert not noisy.clear


def test_median_of_white_noise():
    for rows, columns in ((200, 200), (300, 100), (64, 500)):
        drawn = torch.linalg.svdvals(torch.randn(rows, columns, generator=torch.Generator().manual_seed(7)).double())
        assert _median_value(rows, columns) == pytest.approx(float(drawn.median()), rel=0.03)


def test_the_nearest_point_of_a_line_is_between_its_ends():
    g, z = gradient(6)
    span = row_span([g], inputs=6)
    rng = torch.Generator().manual_seed(4)
    away = torch.randn(6, 40, generator=rng).double()
    start, end = z - 0.3 * away, z + 0.7 * away  # the input is at 0.3 of the way
    assert not span.holds(start).any()
    torch.testing.assert_close(span.nearest(start, end), z, rtol=0, atol=1e-4)
    torch.testing.assert_close(span.nearest(z + away, z + 2 * away), z + away)


def test_what_is_left_has_the_rounding_of_what_was_sent():
    first, z = gradient(20, seed=1)
    second, _ = gradient(5, seed=2)
    left = (first + second) - second  # float32: the sum was rounded
    assert row_span([left], inputs=None, sent=[first + second]).rank == 20
    assert row_span([1e-3 * first], inputs=None, sent=[first]).rank <= row_span([first], inputs=None).rank
    assert row_span([first], inputs=20, sent=[first]).holds(z).all()


def test_above_the_number_of_directions_inputs_are_nearer_than_others():
    rng = torch.Generator().manual_seed(5)
    z = torch.randn(48, 40, generator=rng).double()
    g = torch.linalg.qr(torch.randn(90, 48, generator=rng).double()).Q @ z
    span, other = row_span([g.float()], inputs=None), torch.randn(200, 40, generator=rng).double()
    assert span.rank == 40
    assert float(span.distance(z).max()) < 0.5 * float(span.distance(other).median())
    wide = torch.randn(48, 120, generator=rng).double()
    g = (
        torch.randn(30, 48, generator=rng).double() @ wide
    )  # fewer rows than columns: the directions without a gradient count fully
    span = row_span([g.float()], inputs=None)
    weights = torch.cat([span._weights()[:30], torch.ones(90)])
    scaled = wide * span.scale
    torch.testing.assert_close(
        span.distance(wide), (scaled @ span.basis).square() @ weights.double() / scaled.square().sum(1)
    )
