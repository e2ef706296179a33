"""Image metrics against scikit-image, and what must hold for every batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from leakgauge.errors import BadInput
from leakgauge.measures.image import mse, mse_pairs, psnr, ssim

METRICS = (mse, psnr, ssim, mse_pairs)


def images(n, *shape, seed=0):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


batches = st.builds(
    images,
    st.integers(1, 4),
    st.sampled_from((1, 3)),
    st.integers(1, 20),
    st.integers(1, 20),
    seed=st.integers(0, 99),
)


def reference_ssim(a, b):
    return [
        structural_similarity(
            x,
            y,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1,
            channel_axis=0,
        )
        for x, y in zip(a.numpy(), b.numpy(), strict=True)
    ]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 11, 11), (2, 12, 40), (3, 65, 33)], ids=str)
@pytest.mark.parametrize("noise", [1e-4, 0.1, 1.0])
def test_agrees_with_scikit_image(shape, noise):
    a = images(3, *shape)
    b = (1 - noise) * a + noise * images(3, *shape, seed=1)
    assert ssim(a, b).tolist() == pytest.approx(reference_ssim(a, b), abs=1e-12)
    each = list(zip(a.numpy(), b.numpy(), strict=True))
    assert mse(a, b).tolist() == pytest.approx([mean_squared_error(x, y) for x, y in each], rel=1e-12)
    assert psnr(a, b).tolist() == pytest.approx([peak_signal_noise_ratio(x, y, data_range=1) for x, y in each])


def test_ssim_of_smooth_float32_images_does_not_cancel():
    ramp = torch.linspace(0.9, 0.9001, 32).expand(1, 3, 32, 32)
    a, b = ramp, ramp.flip(-1).contiguous()
    assert ssim(a, b).tolist() == pytest.approx(reference_ssim(a.double(), b.double()), abs=1e-12)


@pytest.mark.parametrize(("side", "window"), [(10, 9), (9, 9), (4, 3), (3, 3)])
def test_ssim_of_small_images_uses_the_largest_odd_window(side, window):
    a, b = images(1, 1, side, 20), images(1, 1, side, 20, seed=1)
    x, y, r = a[0, 0].numpy(), b[0, 0].numpy(), window // 2

    def local_mean(z):
        return gaussian_filter(z, 1.5, radius=r)[r : side - r, r : 20 - r]

    mx, my = local_mean(x), local_mean(y)
    vx, vy, cov = local_mean(x * x) - mx**2, local_mean(y * y) - my**2, local_mean(x * y) - mx * my
    expected = (2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))
    assert ssim(a, b).item() == pytest.approx(expected.mean(), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(batches, st.integers(0, 99))
def test_symmetric_bounded_and_perfect_on_itself(a, seed):
    b = images(*a.shape, seed=seed + 100)
    assert torch.equal(mse(a, b), mse(b, a))
    torch.testing.assert_close(ssim(a, b), ssim(b, a), rtol=0, atol=1e-12)
    assert ssim(a, b).abs().max() <= 1 + 1e-12
    assert mse(a, a).tolist() == [0.0] * len(a)
    assert psnr(a, a).tolist() == [math.inf] * len(a)
    assert ssim(a, a).tolist() == pytest.approx([1.0] * len(a), abs=1e-12)


@settings(deadline=None, max_examples=20)
@given(batches, st.integers(1, 4))
def test_pairs_hold_every_pair(a, m):
    b = images(m, *a.shape[1:], seed=200)
    table = mse_pairs(a, b)
    assert table.shape == (len(a), m)
    for j in range(m):
        torch.testing.assert_close(table[:, j], mse(a, b[j].expand_as(a)), rtol=0, atol=1e-12)


def test_a_data_range_of_255_makes_noise_look_alike():
    """SSIM near 1 for images in [0, 1] that share nothing: the constants drown them. It is our SSIM of images / 255."""
    a, b = images(1, 3, 32, 32), images(1, 3, 32, 32, seed=1)
    inflated = structural_similarity(
        a[0].numpy(), b[0].numpy(), gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255, channel_axis=0
    )  # fmt: skip
    assert 0.98 < inflated < 1
    assert ssim(a / 255, b / 255).item() == pytest.approx(inflated, abs=1e-9)
    assert ssim(a, b).item() < 0.1


def test_known_values():
    black, grey = torch.zeros(1, 1, 16, 16), torch.full((1, 1, 16, 16), 0.1)
    assert mse(black, grey).item() == pytest.approx(0.01)
    assert psnr(black, grey).item() == pytest.approx(20.0)
    assert ssim(black, grey).item() == pytest.approx(1e-4 / (0.01 + 1e-4))  # flat: luminance only


@pytest.mark.parametrize("metric", METRICS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (torch.zeros(2, 3, 8, 8), torch.zeros(2, 1, 8, 8), "same shape"),
        (torch.zeros(3, 8, 8), torch.zeros(3, 8, 8), "N, C, H, W"),
        (torch.zeros(0, 3, 8, 8), torch.zeros(0, 3, 8, 8), "non-empty"),
        (torch.full((1, 1, 8, 8), torch.nan), torch.zeros(1, 1, 8, 8), "first batch must be finite"),
        (torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), torch.inf), "second batch must be finite"),
        (torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), 255), r"\[0, 1\]"),
        (torch.full((1, 1, 8, 8), -2.0), torch.zeros(1, 1, 8, 8), r"\[0, 1\]"),
    ],
)
def test_refuses_what_is_no_image_batch(metric, a, b, says):
    with pytest.raises(BadInput, match=says):
        metric(a, b)


@pytest.mark.parametrize("metric", [mse, psnr, ssim], ids=lambda f: f.__name__)
def test_refuses_different_counts(metric):
    with pytest.raises(BadInput, match="same shape"):
        metric(torch.zeros(2, 1, 8, 8), torch.zeros(3, 1, 8, 8))
