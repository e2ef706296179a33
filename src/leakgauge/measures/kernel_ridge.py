"""Kernel ridge regression with its exact leave-one-out error, for several kernels at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

RIDGES = (0.03, 0.3, 3.0, 30.0)
SMALLEST = 1e-3
"""The smallest share of unexplained variance that we report for a target."""


@dataclass(frozen=True, eq=False)
class KernelRidge:
    """Predicts k(g)·``dual`` with dual (c, N, t). ``spread`` (c, t) is the share of variance left unexplained."""

    dual: Tensor
    spread: Tensor

    def __call__(self, kernels: Tensor) -> Tensor:
        """Predicted targets (c, steps, t) for kernels (c, steps, N) against the training rows."""
        return kernels @ self.dual


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues (c, N) and eigenvectors (c, N, N) of c kernels of centred rows; any ridge can be solved from them."""

    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, kernels: Tensor) -> Spectrum:
        """Computed in double precision: in single, LAPACK may fail on kernels of low rank, which few or equal rows produce."""
        values, vectors = torch.linalg.eigh(kernels.double())
        return cls(values.clamp_min(0).to(kernels), vectors.to(kernels))

    def __getitem__(self, which: slice) -> Spectrum:
        return Spectrum(self.values[which], self.vectors[which])

    def fit(self, targets: Tensor) -> KernelRidge:
        """Fits ``targets`` = Z (N, t), centred and of unit variance, by each of the c kernels K.

        dual = (K + λI)⁻¹ Z, with λ out of ``RIDGES`` by the least Σ_t ln v_t, where v_t is the mean square of the
        leave-one-out residuals (Z - HZ)_i / (1 - H_ii - 1/N), H = K(K + λI)⁻¹, capped at 1: an unpredictable target is
        predicted by its mean. The 1/N accounts for the subtracted mean.

        Ref: Golub et al. 1979, section 1 — leave-one-out residuals in closed form
        """
        count, width = targets.shape
        kernels = len(self.values)
        ridges = torch.tensor(RIDGES, dtype=targets.dtype, device=targets.device)
        shrink = self.values[:, :, None] / (self.values[:, :, None] + ridges)  # (c, N, ridges)
        turned = self.vectors.mT @ targets  # (c, N, t)
        spread_out = (shrink[..., None] * turned[:, :, None, :]).flatten(2)  # all ridges side by side: one product
        fitted = (self.vectors @ spread_out).view(kernels, count, len(ridges), width)
        leverage = self.vectors.square() @ shrink  # (c, N, ridges)
        residual = (targets[:, None, :] - fitted) / (1 - leverage - 1 / count).clamp_min(1e-6)[..., None]
        spread = residual.square().mean(1).clamp(SMALLEST, 1.0)  # (c, ridges, t)
        best = spread.log().sum(-1).argmin(-1)
        dual = self.vectors @ (turned / (self.values + ridges[best][:, None])[..., None])
        return KernelRidge(dual, spread[torch.arange(kernels), best])
