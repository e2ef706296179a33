"""How many directions features use, and how much information a noisy or rounded channel can carry."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.errors import BadInput

AT_ONCE = 1 << 26


def covariance_spectrum(features: Tensor) -> Tensor:
    """Eigenvalues of the covariance of features (N, ...), largest first, float64; at most min(N, D) of them.

    Computed from the smaller of the N x N and the D x D product of the centred features.
    """
    flat = features.flatten(1)
    if len(flat) < 2:
        raise BadInput(f"a covariance needs at least 2 samples, got {len(flat)}")
    if len(flat) <= flat.shape[1]:
        product = torch.zeros(len(flat), len(flat), dtype=torch.float64, device=flat.device)
        for start in range(0, flat.shape[1], max(1, AT_ONCE // len(flat))):
            part = flat[:, start : start + max(1, AT_ONCE // len(flat))].double()
            part = part - part.mean(0)
            product += part @ part.T
    else:
        centred = flat.double() - flat.double().mean(0)
        product = centred.T @ centred
    return torch.linalg.eigvalsh(product / len(flat)).clamp_min(0).flip(0)


def effective_rank(spectrum: Tensor) -> float:
    """exp(-Σ p_i ln p_i) with p_i = λ_i / Σ λ: how many directions carry the variance; 0 without variance.

    ``spectrum`` holds the eigenvalues λ of the covariance.

    >>> round(effective_rank(torch.tensor([1.0, 1.0, 0.0])), 6)
    2.0

    Ref: Roy and Vetterli 2007, section 2 — effective rank
    """
    total = spectrum.double().sum()
    if not total > 0:
        return 0.0
    parts = spectrum.double() / total
    return float(torch.exp(-torch.special.xlogy(parts, parts).sum()))


def gaussian_channel(spectrum: Tensor, *, noise: float) -> float:
    """½ Σ_i ln(1 + λ_i/σ²) in nats: the most that z + N(0, σ²I) can reveal about z with this covariance spectrum λ.

    σ = ``noise``. For a given covariance the Gaussian has the largest entropy, so this is a ceiling for any z. It holds for the
    true spectrum; one from N samples is an estimate (and has at most N - 1 directions).

    Ref: Cover and Thomas 2006, section 9.4 — capacity of parallel Gaussian channels
    """
    if not noise > 0:
        raise BadInput(f"a channel without noise carries infinite information; set a positive noise, got {noise}")
    return 0.5 * float(torch.log1p(spectrum.double() / noise**2).sum())
