"""What Gaussian noise guarantees: an upper bound on the information in a noisy sum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.errors import BadInput


def membership_information(gram: Tensor, *, rate: float, noise: float) -> float:
    """Upper bound in nats of what Σᵢ bᵢ xᵢ + N(0, s²) reveals about the membership b of n candidates.

    min(½ ln det(I + q(1-q)·XXᵀ/s²), n·H(q)) with ``gram`` = XXᵀ (n, n) of the candidates' contributions, ``rate`` = q the
    independent probability of being in the batch, ``noise`` = s the standard deviation per entry of the sum. For a given
    covariance the Gaussian has the largest entropy, and no signal can reveal more about b than the entropy of b.

    Ref: Cover and Thomas 2006, Theorem 8.6.5 — the normal maximises entropy for a given covariance
    """
    count = len(gram)
    if gram.shape != (count, count) or not 0 < rate < 1:
        raise BadInput(f"the bound needs a square Gram matrix and a rate within (0, 1), got {gram.shape} and {rate}")
    if not noise >= 0:
        raise BadInput(f"the standard deviation of the noise must be at least 0, got {noise}")
    entropy = -count * (rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    if noise == 0:
        return entropy
    spectrum = torch.linalg.eigvalsh(gram.double()).clamp_min(0)
    return min(entropy, 0.5 * float(torch.log1p(rate * (1 - rate) / noise**2 * spectrum).sum()))
