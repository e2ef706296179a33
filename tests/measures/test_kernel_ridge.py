import torch

from leakgauge.measures import ridge as kernel_ridge
from leakgauge.measures.ridge import RIDGES, Spectrum


def pairs(n: int = 14, *, noise: float = 0.3):
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(n, 5, generator=rng, dtype=torch.float64)
    targets = rows @ torch.randn(5, 3, generator=rng, dtype=torch.float64)
    targets += noise * torch.randn(n, 3, generator=rng, dtype=torch.float64)
    rows, targets = rows - rows.mean(0), targets - targets.mean(0)
    return rows, targets / targets.std(0)


def left_out(rows, targets, ridge):
    """Each pair predicted by a fit, with its own mean, to all the others."""
    errors = []
    for i in range(len(rows)):
        keep = torch.arange(len(rows)) != i
        mean_x, mean_y = rows[keep].mean(0), targets[keep].mean(0)
        x, y = rows[keep] - mean_x, targets[keep] - mean_y
        fitted = torch.linalg.solve(x.T @ x + ridge * torch.eye(5, dtype=x.dtype), x.T @ y)
        errors.append(targets[i] - mean_y - (rows[i] - mean_x) @ fitted)
    return torch.stack(errors).square().mean(0)


def test_spread_is_the_error_of_leaving_one_out():
    rows, targets = pairs()
    fit = Spectrum.of((rows @ rows.T)[None]).fit(targets)
    errors = torch.stack([left_out(rows, targets, ridge) for ridge in RIDGES]).clamp(1e-3, 1.0)
    best = errors.log().sum(1).argmin()
    torch.testing.assert_close(fit.spread[0], errors[best], rtol=1e-8, atol=0)


def test_predicts_as_ridge_regression_does(monkeypatch):
    monkeypatch.setattr(kernel_ridge, "RIDGES", (0.3,))
    rows, targets = pairs()
    new = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fit = Spectrum.of((rows @ rows.T)[None]).fit(targets)
    weights = torch.linalg.solve(rows.T @ rows + 0.3 * torch.eye(5, dtype=rows.dtype), rows.T @ targets)
    torch.testing.assert_close(fit((new @ rows.T)[None])[0], new @ weights)


def test_several_kernels_are_fitted_each_by_itself():
    rows, targets = pairs()
    good, useless = rows @ rows.T, torch.eye(len(rows), dtype=rows.dtype)
    both = Spectrum.of(torch.stack([good, useless])).fit(targets)
    torch.testing.assert_close(both.spread[0], Spectrum.of(good[None]).fit(targets).spread[0])
    assert (both.spread[1] > 0.9).all()
    assert (both.spread[0] < 0.5).all()


def test_unrelated_targets_are_not_predicted():
    rng = torch.Generator().manual_seed(3)
    rows, targets = torch.randn(60, 5, generator=rng), torch.randn(60, 2, generator=rng)
    rows, targets = rows - rows.mean(0), (targets - targets.mean(0)) / targets.std(0)
    assert (Spectrum.of((rows @ rows.T)[None]).fit(targets).spread > 0.9).all()
