"""Ridge regression in closed form, from inner products of the samples: the cheapest inversion of features, and with kernels and its exact
leave-one-out error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput

PENALTIES = tuple(10.0 ** (k / 2) for k in range(-14, 5))
"""Penalties, relative to the mean squared length of a centred feature."""

AT_ONCE = 1 << 22
"""How many numbers of a feature matrix are in memory at once."""

FEWEST = 10
"""Fewest samples, fitted and held out together."""


@dataclass(frozen=True, eq=False)
class Ridge:
    """x̂ = x̄ + K(z)·A: ``dual`` A (n, P) weighs the inner products of a feature with the n training features.

    ``penalty`` is the chosen λ, ``held_out_mse`` its error on held-out samples.
    """

    features: Tensor
    feature_mean: Tensor
    image_mean: Tensor
    dual: Tensor
    penalty: float
    held_out_mse: float
    image_shape: tuple[int, ...]

    def __call__(self, features: Tensor) -> Tensor:
        """Reconstructed images for features (N, ...), not clipped."""
        products = _products(features.flatten(1), self.features, self.feature_mean)
        return (self.image_mean + products @ self.dual).unflatten(1, self.image_shape)


def fit_ridge(
    features: Tensor, images: Tensor, *, validation: float = 0.2, penalties: Sequence[float] = PENALTIES, seed: int = 0
) -> Ridge:
    """min_W Σ_i ‖x_i - x̄ - W(z_i - z̄)‖² + λ‖W‖², solved as A = (K + λI)⁻¹ X with K = Z Zᵀ (n x n).

    Z, X are the centred ``features`` (N, ...) and ``images`` (N, ...) of the fitted part. A ``validation`` share of the samples,
    drawn by ``seed``, chooses λ among ``penalties`` (times the mean of K's diagonal). K is decomposed once; each further λ costs
    n². Features may be on disk: they are read in blocks.

    Ref: Hoerl and Kennard 1970, section 2 — ridge regression, here in its dual form
    """
    flat, pictures = features.flatten(1), images.flatten(1)
    if len(flat) != len(pictures):
        raise BadInput(f"ridge needs one image per feature, got {len(pictures)} and {len(flat)}")
    if len(flat) < FEWEST:
        raise BadInput(f"ridge needs at least {FEWEST} auxiliary images, got {len(flat)}; give more")
    if not 0 < validation < 1 or not penalties or min(penalties) <= 0:
        raise BadInput(
            f"ridge needs a validation share in (0, 1) and positive penalties, got {validation}, {penalties}"
        )
    order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(validation * len(flat)))
    own, other = flat[order[held:].sort().values], flat[order[:held].sort().values]
    x, x_other = (pictures[rows.sort().values].double().to(flat.device) for rows in (order[held:], order[:held]))
    mean, x_mean = _mean(own), x.mean(0)
    values, vectors = torch.linalg.eigh(_products(own, own, mean))
    values = values.clamp_min(0)
    turned = vectors.T @ (x - x_mean)  # (n, P)
    against = _products(other, own, mean) @ vectors  # (held, n)
    penalty, error = best_penalty(values, turned, against, x_other - x_mean, penalties)
    return Ridge(
        features=own,
        feature_mean=mean,
        image_mean=x_mean,
        dual=vectors @ (turned / (values + penalty)[:, None]),
        penalty=penalty,
        held_out_mse=error,
        image_shape=tuple(images.shape[1:]),
    )


def best_penalty(
    values: Tensor, turned: Tensor, against: Tensor, truth: Tensor, penalties: Sequence[float]
) -> tuple[float, float]:
    """The penalty, out of multiples of the mean of ``values``, of the least held-out error, and that error."""
    mean = float(values.mean())
    scale = mean if mean > 0 else 1.0  # constant features: any penalty gives the mean image
    errors = held_out_errors(values, turned, against, truth, [p * scale for p in penalties])
    best = int(errors.argmin())
    return penalties[best] * scale, float(errors[best])


def held_out_errors(
    values: Tensor, turned: Tensor, against: Tensor, truth: Tensor, penalties: Sequence[float]
) -> Tensor:
    """Mean squared error of B·diag(s)·C against the truth T for each s = 1/(values + λ), with B, C computed once.

    ‖T - B diag(s) C‖² = ‖T‖² - 2 Σ_k s_k (Bᵀ T Cᵀ)_kk + sᵀ((BᵀB) ∘ (C Cᵀ)) s, so each λ costs n².
    """
    cross = (against * (truth @ turned.T)).sum(0)
    square = (against.T @ against) * (turned @ turned.T)
    whole = truth.square().sum()
    errors = []
    for penalty in penalties:
        s = 1 / (values + penalty)
        errors.append((whole - 2 * (s @ cross) + s @ square @ s) / truth.numel())
    return torch.stack(errors)


def _blocks(width: int, rows: int) -> Iterator[slice]:
    step = max(1, AT_ONCE // max(1, rows))
    return (slice(start, start + step) for start in range(0, width, step))


def _mean(features: Tensor) -> Tensor:
    return torch.cat(
        [_numbers(features[:, block]).double().mean(0) for block in _blocks(features.shape[1], len(features))]
    )


def _products(a: Tensor, b: Tensor, mean: Tensor) -> Tensor:
    """(a - mean)(b - mean)ᵀ in float64, summed over blocks of dimensions."""
    found = torch.zeros(len(a), len(b), dtype=torch.float64, device=a.device)
    for block in _blocks(a.shape[1], len(a) + len(b)):
        centre = mean[block].to(_numbers(a[:1, block]).dtype)
        left = _numbers(a[:, block]) - centre
        right = left if a is b else _numbers(b[:, block]) - centre
        found += (left @ right.T).double()
    return found


def _numbers(values: Tensor) -> Tensor:
    """Half precision is for storage; computation uses more."""
    return values if values.dtype == torch.float64 else values.float()


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
