"""The trivial baselines."""

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.baseline import blur, mean_colour
from leakgauge.measures.image import mse


def images(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def test_mean_colour_is_flat_and_keeps_the_mean():
    x = images(3, 3, 17, 9)
    flat = mean_colour(x)
    assert flat.shape == x.shape
    torch.testing.assert_close(flat, x.mean((2, 3), keepdim=True).expand_as(x))


def test_blurred_keeps_flat_images_shapes_and_bounds():
    x = torch.full((1, 3, 10, 14), 0.3)
    torch.testing.assert_close(blur(x), x)
    y = blur(images(2, 1, 10, 14))
    assert y.shape == (2, 1, 10, 14)
    assert 0 <= y.min() <= y.max() <= 1


def test_blurred_goes_through_the_block_means():
    x = torch.zeros(1, 1, 8, 8)
    x[..., :4] = 1.0
    row = blur(x, grid=2)[0, 0, 0]
    assert row.tolist() == pytest.approx([1, 1, 0.875, 0.625, 0.375, 0.125, 0, 0])


def test_a_finer_grid_is_nearer_to_a_smooth_image():
    wave = torch.sin(torch.linspace(0, 6, 32))
    x = (0.5 + 0.5 * wave[:, None] * wave[None, :]).expand(1, 1, 32, 32)
    errors = [mse(x, blur(x, grid=g)).item() for g in (1, 4, 16, 32)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == pytest.approx(0, abs=1e-12)


def test_a_side_shorter_than_the_grid_keeps_its_pixels():
    x = images(1, 3, 2, 3)
    torch.testing.assert_close(blur(x, grid=4), x)


@pytest.mark.parametrize(("x", "grid"), [(images(1, 3, 8, 8), 0), (images(3, 8, 8), 4), (images(0, 3, 8, 8), 4)])
def test_refuses_what_it_cannot_blur(x, grid):
    with pytest.raises(BadInput):
        blur(x, grid=grid)


def test_refuses_integers():
    with pytest.raises(BadInput, match="float"):
        blur(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
