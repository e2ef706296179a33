"""Ridge inversion against the primal closed form, scikit-learn and features that can be inverted exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge as Reference

from leakgauge.errors import BadInput
from leakgauge.measures import ridge
from leakgauge.measures.ridge import fit_ridge


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def split(count: int, held: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[held:].sort().values, order[:held].sort().values


@pytest.mark.parametrize("width", [5, 90])
def test_equals_the_primal_solution(width):
    z, x = drawn(60, width), drawn(60, 2, 3, 3, seed=1)
    found = fit_ridge(z, x, penalties=[0.3], seed=4)
    own, other = split(60, 12, 4)
    reference = Reference(alpha=found.penalty).fit(z[own].numpy(), x[own].flatten(1).numpy())
    np.testing.assert_allclose(found(z).flatten(1).numpy(), reference.predict(z.numpy()), atol=1e-8)
    error = np.mean((reference.predict(z[other].numpy()) - x[other].flatten(1).numpy()) ** 2)
    assert found.held_out_mse == pytest.approx(error, rel=1e-8)


def test_the_penalty_is_the_best_on_the_held_out_part():
    z = drawn(80, 30)
    x = z[:, :6] + 0.5 * drawn(80, 6, seed=2)
    every = {p: fit_ridge(z, x, penalties=[p], seed=1).held_out_mse for p in (1e-6, 1e-2, 1.0, 100.0)}
    chosen = fit_ridge(z, x, penalties=list(every), seed=1)
    assert chosen.held_out_mse == pytest.approx(min(every.values()))
    scale = chosen.penalty / min(every, key=every.__getitem__)
    assert scale == pytest.approx(fit_ridge(z, x, penalties=[1.0], seed=1).penalty)


def test_a_linear_edge_is_inverted():
    x = torch.rand(200, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = x.flatten(1) @ drawn(16, 40, seed=3) + 2.0
    found = fit_ridge(z[:150], x[:150])
    assert float((found(z[150:]) - x[150:]).abs().max()) < 1e-4


def test_noise_is_answered_with_the_mean():
    x = torch.rand(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = fit_ridge(drawn(200, 50), x)
    assert found.held_out_mse < 1.1 * float(x.var(0).mean())
    constant = fit_ridge(torch.ones(20, 3), x[:20])
    torch.testing.assert_close(constant(torch.ones(1, 3))[0], constant.image_mean)


def test_blocks_give_the_same(monkeypatch):
    z, x = drawn(40, 70), drawn(40, 3, seed=1)
    whole = fit_ridge(z, x)(z)
    monkeypatch.setattr(ridge, "AT_ONCE", 300)
    torch.testing.assert_close(fit_ridge(z, x)(z), whole)


def test_half_precision_is_enough():
    x = torch.rand(120, 9, generator=torch.Generator().manual_seed(0))
    z = (x @ drawn(9, 64).float()).bfloat16()
    assert fit_ridge(z, x).held_out_mse < 1e-3 * float(x.var())


def test_bad_input():
    with pytest.raises(BadInput, match="at least 10 auxiliary images, got 4"):
        fit_ridge(drawn(4, 3), drawn(4, 2))
    with pytest.raises(BadInput, match="one image per feature"):
        fit_ridge(drawn(20, 3), drawn(19, 2))
    with pytest.raises(BadInput, match="positive penalties"):
        fit_ridge(drawn(20, 3), drawn(20, 2), penalties=[0.0])
