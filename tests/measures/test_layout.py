"""What stands where: correlation of block means."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.data.embedded import photographs
from leakgauge.errors import BadInput
from leakgauge.measures.image import psnr, ssim
from leakgauge.measures.layout import layout, layout_pairs


def images(n, seed=0, shape=(3, 32, 32)):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 99), st.sampled_from([(1, 32, 32), (3, 16, 24), (3, 40, 8)]))
def test_it_is_the_correlation_of_the_block_means(seed, shape):
    """Against numpy, where blocks divide the sides."""
    a, b = images(3, seed, shape), images(3, seed + 100, shape)

    def blocks(batch):
        n, c, h, w = batch.shape
        means = batch.double().numpy().reshape(n, c, 8, h // 8, 8, w // 8).mean((3, 5))
        return (means - means.mean((2, 3), keepdims=True)).reshape(n, -1)

    expected = [np.corrcoef(x, y)[0, 1] for x, y in zip(blocks(a), blocks(b), strict=True)]
    np.testing.assert_allclose(layout(a, b), expected, atol=1e-9)
    np.testing.assert_allclose(layout_pairs(a.double(), b.double()).diagonal(), expected, atol=1e-9)


def test_brightness_contrast_and_mean_colour_do_not_count():
    photos = photographs(32)
    tinted = (0.4 * photos + torch.tensor([0.5, 0.1, 0.3]).view(3, 1, 1)).clamp(0, 1)
    np.testing.assert_allclose(layout(tinted, photos), 1, atol=1e-6)
    flat = photos.mean((2, 3), keepdim=True).expand_as(photos)
    assert layout(flat, photos).tolist() == [0.0] * len(photos)


def test_it_sees_a_saturated_picture_that_ssim_and_psnr_prefer_grey_to():
    photos = photographs(32)[:6]  # the last two are textures, the same everywhere
    noise = torch.randn(photos.shape, generator=torch.Generator().manual_seed(0))
    harsh = (0.5 + 4 * (photos - photos.mean((2, 3), keepdim=True)) + noise).clamp(0, 1)
    grey = photos.mean((2, 3), keepdim=True).expand_as(photos)
    assert (psnr(harsh, photos) < psnr(grey, photos)).all()
    assert ssim(harsh, photos).mean() < ssim(grey, photos).mean()
    assert (layout(harsh, photos) > 0.7).all()
    assert (layout(noise.sigmoid(), photos).abs() < 0.4).all()


def test_small_images_keep_all_their_pixels():
    a = images(2, shape=(1, 4, 4))
    np.testing.assert_allclose(layout(a, a), 1)
    assert (layout(a, a.flip(-1)) < 0.9).all()


def test_what_is_no_pair_is_refused():
    with pytest.raises(BadInput, match="same shape"):
        layout(images(2), images(3))
