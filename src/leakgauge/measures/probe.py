"""A linear probe: does a feature vector tell two kinds apart? With what permuted labels would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.membership import Rate, auc
from leakgauge.measures.sketch import SignBucket

PENALTIES = tuple(10.0**k for k in range(-3, 5))
"""Relative to the mean squared length of a standardised feature vector."""
FEWEST = 10
MOST, NUMBERS = 1000, 1 << 13
"""Feature vectors of a probe for an attribute, and numbers of each."""


@dataclass(frozen=True, eq=False)
class Probes:
    """score(f) = slope · (⟨w, (f − mean) / deviation⟩ − middle), evidence for kind 1, for each of P ``weights`` (P, d).

    It is the log-likelihood ratio of two normal distributions of one width, fitted to the scores of vectors that were held out. Without
    signal it is near 0, so the evidence of several updates may be added. ``apart`` (P,) is how far the two kinds are apart there, in
    standard deviations: what can be seen of its quality without any test.
    """

    mean: Tensor
    deviation: Tensor
    weights: Tensor
    slope: Tensor
    middle: Tensor
    apart: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Evidence (P, N) of features (N, d)."""
        scores = self.weights @ ((features.double() - self.mean) / self.deviation).T
        return self.slope[:, None] * (scores - self.middle[:, None])


def fit_probes(features: Tensor, labels: Tensor, *, held: int, penalties: Sequence[float] = PENALTIES) -> Probes:
    """One probe for each row of ``labels`` (P, N) of 0 and 1, all on the same ``features`` (N, d).

    Ridge regression of ±1 on the standardised features Z of all but the last ``held`` vectors, in its dual form: w = Zᵀ(ZZᵀ + λI)⁻¹ t. λ is
    the one of ``penalties`` (times the mean of ZZᵀ's diagonal) that separates the held vectors best. ZZᵀ is decomposed once for all rows.

    Ref: Hoerl and Kennard 1970, section 2 — ridge regression
    """
    kinds, count = labels.double().unique().tolist(), len(features) - held
    if features.dim() != 2 or labels.dim() != 2 or labels.shape[1] != len(features) or not set(kinds) <= {0.0, 1.0}:
        raise BadInput(
            f"a probe needs features (N, d) and labels (P, N) of 0 and 1, got {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    parts = (labels[:, :count].double(), labels[:, count:].double())
    if min(count, held) < FEWEST or any(bool((part.var(1) == 0).any()) for part in parts):
        raise BadInput(
            f"a probe needs at least {FEWEST} feature vectors to fit and {FEWEST} held out, of both kinds, got {count} and {held}"
        )
    features = features.double()
    mean, deviation = features[:count].mean(0), features[:count].std(0)
    deviation = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    z = (features - mean) / deviation
    own, other = z[:count], z[count:]
    values, vectors = torch.linalg.eigh(own @ own.T)
    values = values.clamp_min(0)
    scale = float(values.mean()) or 1.0
    targets = 2 * parts[0] - 1
    turned = (targets - targets.mean(1, keepdim=True)) @ vectors  # (P, count)
    against = other @ own.T @ vectors  # (held, count)
    tried = [_evidence((turned / (values + p * scale)) @ against.T, parts[1]) for p in penalties]
    best = torch.stack([apart for _, _, apart in tried]).argmax(0)
    rows = torch.arange(len(labels))
    slope, middle, apart = (torch.stack(each)[best, rows] for each in zip(*tried, strict=True))
    chosen = torch.tensor(list(penalties), dtype=torch.float64)[best]
    weights = (turned / (values + chosen[:, None] * scale)) @ vectors.T @ own
    return Probes(mean, deviation, weights, slope, middle, apart)


def attribute_auc(features: Tensor, has: Tensor, tested: Tensor, truth: Tensor, *, seed: int) -> Rate | None:
    """How well a probe of single feature vectors tells an attribute: fitted to ``features`` (N, …) with ``has`` (N,), a third of them held
    out, asked about the ``tested`` ones (M, …) with ``truth``. Long vectors are sketched. None where either side has too few of a kind.
    """
    parts = [
        (rows[:MOST].flatten(1).float(), kind[:MOST].bool().cpu()) for rows, kind in ((features, has), (tested, truth))
    ]
    if any(min(int(kind.sum()), int((~kind).sum())) < 3 * FEWEST for _, kind in parts):
        return None
    if parts[0][0].shape[1] > NUMBERS:
        plan = SignBucket(total=NUMBERS).plan({"": tuple(features.shape[1:])}, device=features.device, seed=seed)
        parts = [(torch.stack([plan({"": row}).flatten() for row in rows]), kind) for rows, kind in parts]
    (own, known), (other, wanted) = ((rows.cpu(), kind) for rows, kind in parts)
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
    scores = fit_probes(own[order], known[order][None].long(), held=len(own) // 3)(other)[0]
    return auc(scores[wanted], scores[~wanted])


def _evidence(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slope and middle of the log-likelihood ratio (μ₁ − μ₀)/σ² · (s − (μ₁ + μ₀)/2), and (μ₁ − μ₀)/σ, row by row (P, N). A probe whose
    held-out scores point the wrong way keeps a slope just above 0: its order counts where it is alone, its evidence nothing beside
    others."""
    one, other = ((scores * kind).sum(1) / kind.sum(1) for kind in (labels, 1 - labels))
    own = labels * one[:, None] + (1 - labels) * other[:, None]
    spread = (scores - own).square().mean(1).clamp_min(1e-24)
    apart = (one - other) / spread.sqrt()
    return (apart / spread.sqrt()).clamp_min(1e-9), (one + other) / 2, apart
