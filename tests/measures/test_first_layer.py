"""The law of reconstruction from scratch against simulation and values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.first_layer import from_scratch_mse, from_scratch_psnr


@pytest.mark.parametrize("deviation", [0.02, 0.3, 2.0])
@pytest.mark.parametrize("clipped", [True, False])
def test_the_law_is_the_mean_error_of_a_noisy_copy(deviation: float, clipped: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 8, 8, generator=rng, dtype=torch.float64)
    scale = torch.tensor([[1.0, 0.5, 2.0], [0.3, 1.0, 1.0]], dtype=torch.float64) * deviation
    noise = torch.randn(4000, *images.shape, generator=rng, dtype=torch.float64)
    copies = images + scale[:, :, None, None] * noise
    copies = copies.clamp(0, 1) if clipped else copies
    simulated = (copies - images).square().flatten(2).mean((0, 2))
    assert torch.allclose(from_scratch_mse(images, scale, clipped=clipped), simulated, rtol=0.01)


def test_far_ends() -> None:
    half = torch.full((1, 1, 4, 4), 0.5)
    assert float(from_scratch_mse(half, torch.tensor([[1e3]]))) == pytest.approx(0.25, rel=1e-3)  # black or white
    assert float(from_scratch_psnr(half, torch.tensor([[0.001]]))) == pytest.approx(60.0, abs=1e-6)
    assert float(from_scratch_psnr(half, torch.tensor([[2.0]]), clipped=False)) == pytest.approx(-6.0206, abs=1e-4)


def test_refusals() -> None:
    with pytest.raises(BadInput, match="without noise"):
        from_scratch_mse(torch.zeros(1, 1, 2, 2), torch.zeros(1, 1))
    with pytest.raises(BadInput, match="deviations"):
        from_scratch_mse(torch.zeros(1, 1, 2, 2), torch.ones(2, 1))
