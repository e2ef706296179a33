"""A linear probe: does a feature vector tell two kinds apart? With what permuted labels would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput

PENALTIES = tuple(10.0**k for k in range(-3, 5))
"""Relative to the mean squared length of a standardised feature vector."""
FEWEST = 10


@dataclass(frozen=True, eq=False)
class Probes:
    """score(f) = slope · (⟨w, (f − mean) / deviation⟩ − middle), evidence for kind 1, for each of P ``weights`` (P, d).

    It is the log-likelihood ratio of two normal distributions of one width, fitted to the leave-one-out scores of the training vectors.
    Without signal it is near 0, so the evidence of several updates may be added.
    """

    mean: Tensor
    deviation: Tensor
    weights: Tensor
    slope: Tensor
    middle: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Evidence (P, N) of features (N, d)."""
        scores = self.weights @ ((features.double() - self.mean) / self.deviation).T
        return self.slope[:, None] * (scores - self.middle[:, None])


def fit_probes(features: Tensor, labels: Tensor, *, penalties: Sequence[float] = PENALTIES) -> Probes:
    """One probe for each row of ``labels`` (P, N) of 0 and 1, all on the same ``features`` (N, d).

    Ridge regression of ±1 on the standardised features Z, in its dual form: w = Zᵀ(ZZᵀ + λI)⁻¹ t. λ is the one of ``penalties`` (times the
    mean of ZZᵀ's diagonal) with the least exact leave-one-out error e_i = (t_i − ŷ_i) / (1 − H_ii). ZZᵀ is decomposed once for all rows.

    Ref: Hoerl and Kennard 1970, section 2 — ridge regression
    """
    kinds = labels.double().unique().tolist()
    if features.dim() != 2 or labels.dim() != 2 or labels.shape[1] != len(features) or not set(kinds) <= {0.0, 1.0}:
        raise BadInput(
            f"a probe needs features (N, d) and labels (P, N) of 0 and 1, got {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    if len(features) < FEWEST or bool((labels.double().var(1) == 0).any()):
        raise BadInput(f"a probe needs at least {FEWEST} feature vectors, of both kinds, got {len(features)}")
    features = features.double()
    mean, deviation = features.mean(0), features.std(0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    z = (features - mean) / deviation
    values, vectors = torch.linalg.eigh(z @ z.T)
    values = values.clamp_min(0)
    scale = float(values.mean()) or 1.0
    targets = 2 * labels.double() - 1
    centred = targets - targets.mean(1, keepdim=True)
    turned = centred @ vectors  # (P, N)
    best = torch.full((len(labels),), torch.inf, dtype=torch.float64)
    chosen = torch.zeros(len(labels), dtype=torch.float64)
    left_out = torch.zeros_like(centred)
    for penalty in penalties:
        shrunk = values / (values + penalty * scale)
        fitted = (turned * shrunk) @ vectors.T
        own = (vectors.square() @ shrunk) + 1 / len(z)  # the mean is fitted too
        residual = (centred - fitted) / (1 - own).clamp_min(1e-9)
        error = residual.square().mean(1)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, torch.full_like(chosen, penalty), chosen)
        left_out = torch.where(better[:, None], centred - residual, left_out)
    weights = (turned / (values + chosen[:, None] * scale)) @ vectors.T @ z
    return Probes(mean, deviation, weights, *_evidence(left_out, labels.double()))


def _evidence(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and middle of the log-likelihood ratio (μ₁ − μ₀)/σ² · (s − (μ₁ + μ₀)/2), row by row (P, N). A probe whose leave-one-out scores
    point the wrong way keeps a slope just above 0: its order counts where it is alone, its evidence nothing beside others."""
    one, other = ((scores * kind).sum(1) / kind.sum(1) for kind in (labels, 1 - labels))
    own = labels * one[:, None] + (1 - labels) * other[:, None]
    spread = (scores - own).square().mean(1).clamp_min(1e-12)
    return ((one - other) / spread).clamp_min(1e-9), (one + other) / 2
