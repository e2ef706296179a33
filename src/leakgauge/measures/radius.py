"""How far features are from the centre of their class."""

from __future__ import annotations

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
