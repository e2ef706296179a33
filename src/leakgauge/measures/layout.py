"""Where things are in a picture: how similar two images are without any detail, and if the tiles of one may be rearranged freely.

A gradient can reveal positions, outlines and colours in a picture so saturated or grainy that SSIM and PSNR prefer a grey one. A human
still recognises such a picture, and so does a correlation of block means. An attack on a vision transformer may recover every patch but put
it in the wrong place, because attention hardly depends on position. Measures that compare pixel by pixel miss such a picture; a human does
not.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.image import check_pair
from leakgauge.measures.reidentification import merge_candidates, normalised_correlation, pattern, rounding_error

GRID = 8
"""Blocks per side: twice as many as the trivial baseline keeps."""


def layout(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of the layouts of each pair of images (N, C, H, W) in [0, 1], shape (N,), within [-1, 1].

    The normalised correlation of the 8×8 block means after subtracting each channel's mean, so brightness, contrast and mean
    colour do not count. 0 if an image is flat. A side shorter than 8 keeps all its pixels.

    >>> import torch
    >>> half = torch.zeros(1, 1, 16, 16)
    >>> half[..., :8] = 0.2
    >>> [round(value, 6) for value in layout(torch.cat([half, 1 - half]), torch.cat([half, half])).tolist()]
    [1.0, -1.0]
    """
    a, b = check_pair(a, b)
    return (pattern(_blocks(a)) * pattern(_blocks(b))).sum(1)


def layout_pairs(a: Tensor, b: Tensor) -> Tensor:
    """As :func:`layout`, of every image of ``a`` (N) with every image of ``b`` (M), shape (N, M)."""
    return normalised_correlation(_blocks(a), _blocks(b))


def _blocks(images: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    means = F.adaptive_avg_pool2d(images, (min(GRID, height), min(GRID, width)))
    return means - means.mean((-2, -1), keepdim=True)


def pieces(a: Tensor, b: Tensor, *, side: int) -> Tensor:
    """The highest correlation with ``b`` over all orders of the tiles of ``a``, for each pair of images (N, C, H, W), shape (N,).

    max over permutations π of Σ_t ⟨a_π(t), b_t⟩ / (‖a‖ ‖b‖), with tiles of ``side`` × ``side`` pixels after subtracting each channel's
    mean. 0 if an image is flat. Small tiles of unrelated images correlate too, so compare with other images: :func:`lead`.

    >>> image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> swapped = torch.cat([image[..., 4:], image[..., :4]], -1)
    >>> round(float(pieces(swapped, image, side=4)), 6)
    1.0
    """
    a, b = check_pair(a, b)
    products = _tiles(a, side) @ _tiles(b, side).mT
    return torch.tensor([_best(one.cpu().numpy()) for one in products], dtype=torch.float64)


def pair_pieces(guesses: Tensor, truths: Tensor, *, side: int) -> Tensor:
    """For each of ``truths`` the index of the guess with the best fitting pieces, one to one. Pixel by pixel, scrambled images would be
    paired at random.

    A pair is scored by an upper bound: every tile of the guess may take its best tile of the truth.
    """
    guesses, truths = check_pair(guesses, truths)
    tiles, others = _tiles(guesses, side), _tiles(truths, side)
    most = torch.stack([(one @ others.mT).amax(2).sum(1) for one in tiles])  # (guesses, truths)
    rows, columns = _assign(most.cpu().numpy())
    return torch.from_numpy(rows[np.argsort(columns)])


def lead(guesses: Tensor, truths: Tensor, pool: Tensor, *, side: int) -> Tensor:
    """How much better the pieces of each guess fit its own true image than any other candidate, shape (N,).

    Negative if another candidate fits better, zero if a guess is flat. Candidates are the distinct images of ``truths`` and ``pool``.
    If the guess is unrelated to the truth, each of M candidates is equally likely to fit best: P(lead > 0) = 1 / M.
    """
    apart = rounding_error(truths)
    guesses, truths = check_pair(guesses, truths)
    own, candidates = merge_candidates(truths, pool.to(truths), apart=apart)
    if len(candidates) < 2:
        raise BadInput("a lead needs at least one other image to compare with")
    tiles, others = _tiles(guesses, side), _tiles(candidates, side)
    return torch.tensor(
        [_lead(one @ others.mT, int(mine)) for one, mine in zip(tiles, own, strict=True)], dtype=torch.float64
    )


def _lead(products: Tensor, own: int) -> float:
    """``products`` (candidates, tiles, tiles). Candidates are tried by descending upper bound, until none can be better."""
    bounds = products.amax(2).sum(1).tolist()
    mine, highest = _best(products[own].cpu().numpy()), -np.inf
    for other in sorted(range(len(bounds)), key=lambda i: -bounds[i]):
        if bounds[other] <= highest:
            break
        if other != own:
            highest = max(highest, _best(products[other].cpu().numpy()))
    return mine - highest


def _best(products: np.ndarray) -> float:
    return float(products[_assign(products)].sum())


def _assign(products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the one-to-one assignment with the largest sum."""
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    return linear_sum_assignment(products, maximize=True)


def _tiles(images: Tensor, side: int) -> Tensor:
    """(N, tiles, values); all tiles of an image together have length 1, or 0 if it is flat."""
    count, channels, height, width = images.shape
    if side < 1 or height % side or width % side:
        raise BadInput(f"tiles of {side} pixels do not divide images of {height}×{width}")
    flat = pattern(images - images.mean((-2, -1), keepdim=True))
    cut = flat.reshape(count, channels, height // side, side, width // side, side)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(count, (height // side) * (width // side), -1)
