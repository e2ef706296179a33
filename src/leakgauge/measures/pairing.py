"""Matches reconstructions to true images: an attack on a batch cannot know the order."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.image import mse_pairs


def pair(reconstructions: Tensor, truths: Tensor) -> Tensor:
    """The permutation with ``truths[pair(reconstructions, truths)]`` in the order of ``reconstructions``.

    Entry i is the index of the truth matched to reconstruction i. It is the one-to-one matching with the least total squared
    error (Hungarian method), so a perfect but shuffled batch gets its order back.

    >>> truths = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> pair(truths[[2, 0, 1]], truths).tolist()
    [2, 0, 1]
    """
    if len(reconstructions) != len(truths):
        raise BadInput(f"pairing is one to one, got {len(reconstructions)} reconstructions and {len(truths)} truths")
    from scipy.optimize import linear_sum_assignment  # here, because it takes longer to import than this whole package

    _, columns = linear_sum_assignment(mse_pairs(reconstructions, truths).cpu().numpy())
    return torch.as_tensor(columns, dtype=torch.long, device=reconstructions.device)
