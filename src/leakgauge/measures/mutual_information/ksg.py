"""KSG: mutual information from distances to nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import KDTree
from scipy.special import digamma
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.estimate import Estimate, check_pairs, normal_interval
from leakgauge.measures.mutual_information.scale import standardise

JITTER = 1e-10
"""Noise that breaks ties, relative to the standard deviation; Kraskov et al. recommend it for rounded data."""


@checked
@dataclass(frozen=True)
class KSG:
    """Kraskov et al. 2004, first algorithm, with the maximum norm and ``k`` neighbours.

    Nothing is fitted, so every pair counts as held out, and ``in_sample`` is the same value. Consistent in few dimensions;
    in many (twenty-five and more) it reads far too low. Not a bound. The interval treats the terms of the pairs as
    independent, which is only approximately true because they share neighbours.
    """

    k: int = 3

    def __post_init__(self) -> None:
        if self.k < 1:
            raise BadInput(f"KSG needs one neighbour or more, got k={self.k}")

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        (pairs,) = standardise(check_pairs(a, b, fewest=max(40, self.k + 2)))
        rng = torch.Generator().manual_seed(seed)
        left, right = (
            side + JITTER * torch.randn(side.shape, dtype=side.dtype, generator=rng) for side in (pairs.a, pairs.b)
        )
        terms = torch.from_numpy(ksg_terms(left.numpy(), right.numpy(), k=self.k))
        value = float(terms.mean())
        return Estimate(value, *normal_interval(value, terms), value, len(pairs))


def ksg_terms(a: np.ndarray, b: np.ndarray, *, k: int) -> np.ndarray:
    """ψ(k) + ψ(N) − ψ(n_a + 1) − ψ(n_b + 1) of each pair; their mean is the estimate.

    n_a and n_b count the points closer in ``a`` (in ``b``) alone than the k-th neighbour is in both.

    Ref: Kraskov et al. 2004, Eq. (8) — first estimator
    """
    n = len(a)
    both = np.concatenate([a, b], 1)
    radius = KDTree(both).query(both, k=k + 1, p=np.inf)[0][:, -1]
    inside = np.nextafter(radius, 0)  # strictly closer
    near_a, near_b = (KDTree(side).query_ball_point(side, inside, p=np.inf, return_length=True) - 1 for side in (a, b))
    return digamma(k) + digamma(n) - digamma(near_a + 1) - digamma(near_b + 1)
