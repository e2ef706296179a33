"""Scores of series against numpy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.measures.image import ssim
from leakgauge.measures.series import correlation, smape


def test_correlation_is_numpys_mean_over_channels():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 4, 3, 40))
    expected = [np.mean([np.corrcoef(a[i, c], b[i, c])[0, 1] for c in range(3)]) for i in range(4)]
    assert correlation(torch.from_numpy(a), torch.from_numpy(b)).tolist() == pytest.approx(expected, abs=1e-12)


def test_scale_and_offset_do_not_matter_and_a_flat_series_has_no_shape():
    a = torch.sin(torch.linspace(0, 9, 50))[None, None]
    assert float(correlation(a, 3 * a + 7)) == pytest.approx(1)
    assert float(correlation(a, -a)) == pytest.approx(-1)
    assert float(correlation(a, torch.full_like(a, 0.3))) == 0


def test_smape_by_hand_is_symmetric_and_bounded():
    a, b = torch.tensor([[[1.0, 2, 0, 5]]]), torch.tensor([[[3.0, 2, 0, -5]]])
    assert float(smape(a, b)) == pytest.approx(100 / 4 * (2 * 2 / 4 + 0 + 0 + 2 * 10 / 10))
    assert float(smape(b, a)) == float(smape(a, b))
    assert float(smape(a, a)) == 0
    assert float(smape(torch.ones(1, 1, 3), torch.zeros(1, 1, 3))) == 200


def test_series_of_other_shapes_are_refused():
    with pytest.raises(BadInput, match="same shape"):
        correlation(torch.rand(1, 1, 3), torch.rand(1, 1, 4))


def test_ssim_of_a_series_has_its_window_along_time():
    """A window of a single pixel would see no structure, and call these two alike."""
    t = torch.linspace(0, 12, 64)
    a = (0.5 + 0.4 * torch.sin(t))[None, None, None]
    assert float(ssim(a, a)) == pytest.approx(1)
    assert float(ssim(a, 1 - a)) < -0.4
