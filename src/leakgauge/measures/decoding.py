"""Finds which candidates make up a sum: ridge regression of the sum on their contributions."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGES = tuple(10.0**power for power in range(-10, 3))


def decode(gram: Tensor, cross: Tensor, energy: float, dimensions: int) -> Tensor:
    """Weights of n candidates in one signal, shape (n,); see :func:`decode_each`."""
    energies = torch.tensor([energy], dtype=torch.float64, device=gram.device)
    return decode_each(gram, cross[:, None], energies, dimensions)[:, 0]


def decode_each(gram: Tensor, cross: Tensor, energy: Tensor, dimensions: int) -> Tensor:
    """Weights c = (XXᵀ + λI)⁻¹ X g of n candidates in each of m signals g ≈ Xᵀc, shape (n, m).

    ``gram`` = XXᵀ (n, n), ``cross`` = Xg (n, m), ``energy`` = ‖g‖² (m,) and ``dimensions`` = d the length of g. For each signal, λ
    is the multiple of the mean diagonal, out of ``RIDGES``, with the least generalised cross-validation error
    ‖g - Xᵀc‖²/(d - tr H)²; there is nothing to tune. Without noise and with independent rows, c is exact.

    Ref: Golub et al. 1979, section 1 — ridge parameter by generalised cross-validation
    """
    gram, cross = gram.double(), cross.double()
    scale = gram.diagonal().mean().clamp_min(1e-300)
    values, vectors = torch.linalg.eigh(gram / scale)
    values = values.clamp_min(0)[:, None]
    turned = vectors.T @ cross / scale
    ridges = torch.tensor(RIDGES, dtype=values.dtype, device=values.device)[:, None, None]
    weights = turned / (values + ridges)  # (ridges, n, m): coefficients in the eigenbasis
    fitted = (weights.square() * values).sum(1) - 2 * (weights * turned).sum(1)
    left = (energy.to(values) / scale + fitted).clamp_min(0)
    freedom = dimensions - (values / (values + ridges)).sum(1)
    error = torch.where(freedom > 0, left / freedom.clamp_min(1e-9).square(), torch.inf)
    best = error.argmin(0)
    return vectors @ weights[best, :, torch.arange(len(best), device=best.device)].T
