"""What features give away by their spread: class radii, directions in use, capacity of a noisy channel, and entropy bounds.

The split-inference paper's entropy bounds are trend indicators, not guarantees. They bound the entropy of features by that of a Gaussian
with the same trace. For images in [0, 1] the entropy H(x) is at most 0 and the subtracted term is positive at nearly every cut, so
"H(x|z) ≥ a negative number" says nothing. The value changes with any rescaling of x or z. The trace is spread over all D dimensions
although few of them carry variance (see :func:`effective_rank`). What remains is a number that follows the spread of the features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput

AT_ONCE = 1 << 26
"""How many float64 numbers are in memory at once."""


@dataclass(frozen=True)
class Radii:
    """Class radii of features (N, D) with true labels, over the whole set.

    ``per_class``: R_c² by class. ``mean``: their mean over classes. ``total``: the variance tr Σ of all features.
    ``within``: the share of the variance within classes, 1 - (between classes).
    """

    per_class: dict[int, float]
    mean: float
    largest: float
    total: float
    within: float
    dimensions: int


def class_radii(features: Tensor, labels: Tensor) -> Radii:
    """Mean squared radius of each class, R_c² = tr Σ_c = 1/N_c Σ_{i: y_i=c} ‖z_i - μ_c‖², with μ_c the class centre.

    z = ``features`` (N, ...), flattened; y = ``labels`` (N,), the true ones. By the law of total variance
    tr Σ = Σ_c N_c/N·R_c² + Σ_c N_c/N·‖μ_c - μ‖²; ``within`` is the first sum's share of the total.

    Ref: Liu and Zhu 2025, Eq. (4) — within-class mean-squared radius
    """
    flat = features.flatten(1)
    if labels.shape != (len(flat),) or len(flat) == 0:
        raise BadInput(f"radii need one label per feature, got {tuple(labels.shape)} for {len(flat)} features")
    classes, members = labels.to(flat.device).unique(return_inverse=True)
    counts = torch.bincount(members, minlength=len(classes)).double()
    squares = torch.zeros(len(classes), dtype=torch.float64, device=flat.device)
    total = torch.zeros((), dtype=torch.float64, device=flat.device)
    width = max(1, AT_ONCE // len(flat))
    for start in range(0, flat.shape[1], width):  # blocks of dimensions are exact; all at once may not fit in memory
        part = flat[:, start : start + width].double()
        centres = torch.zeros(len(classes), part.shape[1], dtype=torch.float64, device=flat.device)
        centres.index_add_(0, members, part)
        centres /= counts[:, None]
        squares.index_add_(0, members, (part - centres[members]).square().sum(1))
        total += (part - part.mean(0)).square().sum()
    radii = squares / counts
    spread = float(total) / len(flat)
    return Radii(
        per_class={int(c): float(r) for c, r in zip(classes.tolist(), radii, strict=True)},
        mean=float(radii.mean()),
        largest=float(radii.max()),
        total=spread,
        within=float(squares.sum() / total) if spread > 0 else 0.0,
        dimensions=flat.shape[1],
    )


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


NOT_A_GUARANTEE = "trend indicator, not a guarantee"


@dataclass(frozen=True)
class TrendIndicator:
    """A bound in nats per dimension. Show ``meaning`` wherever the number is shown."""

    nats_per_dimension: float
    dimensions: int
    meaning: str = NOT_A_GUARANTEE

    @property
    def nats(self) -> float:
        return self.nats_per_dimension * self.dimensions


def feature_entropy(radii: Radii) -> TrendIndicator:
    """h(Z) ≤ d/2·ln(2πe σ²) with σ² = tr Σ / d, from ``radii.total`` = tr Σ and ``radii.dimensions`` = d.

    Ref: Liu and Zhu 2025, Eq. (3) — entropy bound of feature-level representations
    """
    return TrendIndicator(_gaussian(radii.total, radii.dimensions), radii.dimensions)


def decision_entropy(radii: Radii) -> TrendIndicator:
    """h(Z) ≤ max_c D/2·ln(2πe R_c²/D) + ln K over the K classes, from ``radii.largest`` = max_c R_c².

    Ref: Liu and Zhu 2025, Eq. (4) — entropy bound of decision-level representations
    """
    d = radii.dimensions
    return TrendIndicator(_gaussian(radii.largest, d) + math.log(len(radii.per_class)) / d, d)


def _gaussian(trace: float, dimensions: int) -> float:
    """½ ln(2πe·trace/D): entropy per dimension of a Gaussian with evenly spread variance; -∞ without variance."""
    return 0.5 * math.log(2 * math.pi * math.e * trace / dimensions) if trace > 0 else -math.inf
