"""Is everything there, in whatever order: how alike two images are once the tiles of one may be put anywhere.

An attack on a vision transformer may recover every patch and put it in another's place: attention hardly tells where a token stands.
No measure that compares place by place sees such a picture, a human does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.image import checked_pair
from leakgauge.measures.reidentification import pattern, rounding, together


def pieces(a: Tensor, b: Tensor, *, side: int) -> Tensor:
    """Highest correlation that any order of the tiles of ``a`` has with ``b``, for each pair of images (N, C, H, W), shape (N,).

    max over permutations π of Σ_t ⟨a_π(t), b_t⟩ / (‖a‖ ‖b‖), with tiles of ``side`` × ``side`` pixels and each channel's own mean taken
    off. 0 where an image is flat. Small tiles of other images correlate too, so it is to be read beside other images: :func:`lead`.

    >>> image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> swapped = torch.cat([image[..., 4:], image[..., :4]], -1)
    >>> round(float(pieces(swapped, image, side=4)), 6)
    1.0
    """
    a, b = checked_pair(a, b)
    products = _tiles(a, side) @ _tiles(b, side).mT
    return torch.tensor([_best(one.cpu().numpy()) for one in products], dtype=torch.float64)


def paired(guesses: Tensor, truths: Tensor, *, side: int) -> Tensor:
    """For each of ``truths`` the index of the guess whose pieces fit it, one to one; place by place, scrambled images are paired at random.

    By what each pair could reach at most, every tile of a guess being free to take the best tile of the truth.
    """
    guesses, truths = checked_pair(guesses, truths)
    tiles, others = _tiles(guesses, side), _tiles(truths, side)
    most = torch.stack([(one @ others.mT).amax(2).sum(1) for one in tiles])  # (guesses, truths)
    rows, columns = _assigned(most.cpu().numpy())
    return torch.from_numpy(rows[np.argsort(columns)])


def lead(guesses: Tensor, truths: Tensor, pool: Tensor, *, side: int) -> Tensor:
    """By how much the pieces of each guess fit its own true image better than any other candidate, shape (N,).

    Negative where another fits better, zero where a guess is flat. Candidates are the distinct images of ``truths`` and ``pool``. If
    the guess tells nothing of the truth, each of M candidates is equally likely to fit best: the lead is above 0 with a chance of 1 / M.
    """
    apart = rounding(truths)
    guesses, truths = checked_pair(guesses, truths)
    own, candidates = together(truths, pool.to(truths), apart=apart)
    if len(candidates) < 2:
        raise BadInput("a lead needs at least one other image to compare with")
    tiles, others = _tiles(guesses, side), _tiles(candidates, side)
    return torch.tensor(
        [_lead(one @ others.mT, int(mine)) for one, mine in zip(tiles, own, strict=True)], dtype=torch.float64
    )


def _lead(products: Tensor, own: int) -> float:
    """``products`` (candidates, tiles, tiles). Candidates are tried in the order of what they could reach at most, until none can."""
    bounds = products.amax(2).sum(1).tolist()
    mine, highest = _best(products[own].cpu().numpy()), -np.inf
    for other in sorted(range(len(bounds)), key=lambda i: -bounds[i]):
        if bounds[other] <= highest:
            break
        if other != own:
            highest = max(highest, _best(products[other].cpu().numpy()))
    return mine - highest


def _best(products: np.ndarray) -> float:
    return float(products[_assigned(products)].sum())


def _assigned(products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the one-to-one assignment with the largest sum."""
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    return linear_sum_assignment(products, maximize=True)


def _tiles(images: Tensor, side: int) -> Tensor:
    """(N, tiles, values), all tiles of an image together of length 1, or 0 where it is flat."""
    count, channels, height, width = images.shape
    if side < 1 or height % side or width % side:
        raise BadInput(f"tiles of {side} pixels do not fill images of {height}×{width}")
    flat = pattern(images - images.mean((-2, -1), keepdim=True))
    cut = flat.reshape(count, channels, height // side, side, width // side, side)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(count, (height // side) * (width // side), -1)
