"""Canonical correlations: the mutual information of two Gaussian vectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.estimate import Estimate, Pairs, check_pairs, normal_interval, split_pairs
from leakgauge.measures.mutual_information.scale import standardise

LARGEST = 1 - 1e-9
"""Largest correlation: 1 would make the information infinite."""


@checked
@dataclass(frozen=True)
class CCA:
    """Exact for Gaussians, blind to anything nonlinear; not a bound.

    The covariance is fitted to the training pairs with the shrinkage of Ledoit and Wolf. ``nats`` is the mean over held-out
    pairs of the fitted log-ratio :func:`gaussian_log_ratio`; ``in_sample`` is :func:`gaussian_information` of the training
    pairs *without* shrinkage. That is the number usually quoted; it grows with the dimension if pairs are few.
    """

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        train, valid, held = standardise(*split_pairs(check_pairs(a, b), seed))
        fitted = Pairs(torch.cat([train.a, valid.a]), torch.cat([train.b, valid.b]))  # nothing to stop: fit on both
        terms = gaussian_log_ratio(held, *canonical(fitted))
        value = float(terms.mean())
        plain = gaussian_information(canonical(fitted, shrink=False)[0])
        return Estimate(value, *normal_interval(value, terms), float(plain), len(held))


def canonical(pairs: Pairs, *, shrink: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Canonical correlations ρ and their directions: with u = A a, v = B b, corr(u_i, v_i) = ρ_i, and 0 otherwise.

    Ref: Hotelling 1936 — canonical correlations, from the singular values of Σaa^-½ Σab Σbb^-½
    """
    both = torch.cat([pairs.a, pairs.b], 1)
    both = both - both.mean(0)
    covariance = shrunk_covariance(both) if shrink else both.T @ both / len(both)
    p = pairs.a.shape[1]
    left, right = (_inverse_root(block) for block in (covariance[:p, :p], covariance[p:, p:]))
    u, correlations, vh = torch.linalg.svd(left @ covariance[:p, p:] @ right, full_matrices=False)
    return correlations.clamp(max=LARGEST), u.T @ left, vh @ right


def shrunk_covariance(centred: Tensor) -> Tensor:
    """(1 − λ) S + λ m I with S the covariance of ``centred`` (n, d), m its mean diagonal, and λ of least expected loss.

    λ = b² / d², d² = ‖S − m I‖²/d, b² = min(d², Σ_i ‖x_i x_iᵀ − S‖² / (n² d)).

    Ref: Ledoit and Wolf 2004, Lemma 3.2 to 3.4 — well-conditioned covariance
    """
    n, d = centred.shape
    sample = centred.T @ centred / n
    target = sample.diagonal().mean() * torch.eye(d, dtype=sample.dtype)
    away = (sample - target).square().sum() / d
    # Σ ‖x xᵀ − S‖² = Σ ‖x‖⁴ − n ‖S‖², as the mean of x xᵀ is S
    spread = (centred.square().sum(1).square().sum() - n * sample.square().sum()) / (n**2 * d)
    weight = 0.0 if away == 0 else float(torch.clamp(spread / away, 0, 1))
    return (1 - weight) * sample + weight * target


def _inverse_root(block: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(block)
    kept = values > 1e-10 * values.max().clamp(min=1e-300)  # constant coordinates have no direction
    return vectors[:, kept] @ (values[kept].rsqrt()[:, None] * vectors[:, kept].T)


def gaussian_information(correlations: Tensor) -> Tensor:
    """I = −½ Σ log(1 − ρ_i²), ρ = ``correlations`` between two Gaussian vectors.

    >>> round(float(gaussian_information(torch.tensor([0.75], dtype=torch.float64))), 4)
    0.4133

    Ref: Kullback 1959, chapter 9 — information between Gaussian vectors
    """
    return -0.5 * torch.log1p(-correlations.square()).sum()


def gaussian_log_ratio(pairs: Pairs, correlations: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """log p(a, b) / (p(a) p(b)) of each pair, for Gaussians of the given canonical correlations and directions.

    Per direction: −½ log(1 − ρ²) − (ρ² u² − 2 ρ u v + ρ² v²) / (2 (1 − ρ²)) with u = A a and v = B b.
    """
    u, v = pairs.a @ left.T, pairs.b @ right.T
    rho = correlations
    square = rho.square()
    exponent = (square * (u.square() + v.square()) - 2 * rho * u * v) / (2 * (1 - square))
    return (-0.5 * torch.log1p(-square) - exponent).sum(1)
