"""Regression of patches: known maps are inverted, on places of any layout."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput, Inapplicable
from leakgauge.measures.local_ridge import as_map, fit_local_ridge


def pictures(count: int, side: int, seed: int = 0) -> Tensor:
    coarse = torch.rand(count, 2, 5, 5, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, size=(side, side), mode="bicubic").clamp(0, 1)


@pytest.mark.parametrize("pad", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (3, 3, 3, 3)])
def test_a_padded_copy_is_read(pad: tuple[int, int, int, int]):
    images, other = pictures(40, 30), pictures(8, 30, seed=1)
    fitted = fit_local_ridge(F.pad(images, pad), images)
    made = fitted(F.pad(other, pad))
    assert made.shape == other.shape
    assert float((made - other).square().mean()) < 1e-5
    assert fitted.held_out_mse < 1e-5


@pytest.mark.parametrize("side", [32, 30])  # the second is no multiple of the block
def test_blocks_are_put_where_they_belong(side: int):
    images, other = pictures(40, side), pictures(8, side, seed=1)

    def edge(x: Tensor) -> Tensor:
        return F.pixel_unshuffle(F.pad(x, (0, -side % 4, 0, -side % 4)), 4)

    fitted = fit_local_ridge(edge(images), images)
    assert fitted.block == 4
    assert float((fitted(edge(other)) - other).square().mean()) < 1e-4


def test_tokens_are_put_on_their_square():
    tokens = torch.arange(10.0).view(1, 10, 1)
    assert as_map(tokens)[0, 0].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert as_map(tokens[:, 1:])[0, 0, 0].tolist() == [1, 2, 3]
    for shape in ((2, 10), (2, 11, 3), (2, 1, 5)):
        with pytest.raises(Inapplicable, match="no places"):
            as_map(torch.rand(shape))


def test_constant_features_give_the_mean_block():
    images = pictures(20, 8)
    made = fit_local_ridge(torch.ones(20, 3, 8, 8), images)(torch.ones(2, 3, 8, 8))
    assert torch.allclose(made[:, :, 3:5, 3:5].mean((2, 3)), images.mean((0, 2, 3)).expand(2, -1), atol=0.05)


def test_bad_input():
    with pytest.raises(BadInput, match="one image per feature"):
        fit_local_ridge(torch.rand(20, 3, 8, 8), torch.rand(19, 3, 8, 8))
    with pytest.raises(BadInput, match="at least 10"):
        fit_local_ridge(torch.rand(5, 3, 8, 8), torch.rand(5, 3, 8, 8))
