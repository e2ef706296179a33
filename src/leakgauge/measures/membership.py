"""Who is in a sum: how well a score separates members from others, which candidates make up a sum, and what noise guarantees."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.intervals import clopper_pearson


@dataclass(frozen=True)
class Rate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


def auc(members: Tensor, others: Tensor, *, level: float = 0.95) -> Rate:
    """Area under the ROC curve U = P(member > other) + ½ P(member = other), with :func:`auc_interval`.

    Ref: Hanley and McNeil 1982, introduction — the area as the Wilcoxon statistic
    """
    _check(members, others)
    from scipy.stats import rankdata  # here, because it takes longer to import than this whole package

    ranks = rankdata(torch.cat([members, others]).double().cpu().numpy())
    count = len(members)
    value = (float(ranks[:count].sum()) - count * (count + 1) / 2) / (count * len(others))
    return Rate(value, *auc_interval(value, count, len(others), level=level))


def auc_interval(value: float, members: int, others: int, *, level: float = 0.95) -> tuple[float, float]:
    """All areas A that the observed area U = ``value`` does not reject: exp(-k·kl(U, A)) > (1 - level)/2.

    k = min(``members``, ``others``) and kl(u, a) = u·ln(u/a) + (1-u)·ln((1-u)/(1-a)). U is an average of averages over
    k disjoint pairs, each bounded by [0, 1], so the exponential bound of k independent pairs holds for any sample size and
    any distribution of independent scores. It is wider than a bootstrap, and still useful at U = 1, where
    low = ((1 - level)/2)^(1/k).

    Ref: Hoeffding 1963, section 5 — two-sample U-statistics, with the relative-entropy bound of Theorem 1
    """
    if not 0 <= value <= 1 or min(members, others) < 1:
        raise BadInput(f"an area must be in [0, 1] and needs members and others, got {value}, {members} and {others}")
    budget = math.log(2 / (1 - level)) / min(members, others)
    return _farthest(value, 0.0, budget), _farthest(value, 1.0, budget)


def _farthest(value: float, end: float, budget: float) -> float:
    """The area between ``value`` and ``end`` with a relative entropy equal to the budget, by bisection."""
    near, far = value, end
    for _ in range(60):
        middle = (near + far) / 2
        if middle in (near, far):
            break
        if _relative_entropy(value, middle) < budget:
            near = middle
        else:
            far = middle
    return (near + far) / 2 if value != end else end


def true_positive_rate(members: Tensor, others: Tensor, *, false_positives: float = 0.01, level: float = 0.95) -> Rate:
    """Share of members above the lowest threshold at which at most ``false_positives`` of the others are above it.

    With fewer than 1/``false_positives`` others this is the share above all of them. The interval is
    :func:`clopper_pearson` at that threshold.
    """
    _check(members, others)
    allowed = int(false_positives * len(others) + 1e-9)
    threshold = others.sort(descending=True).values[allowed]
    hits = int((members > threshold).sum())
    return Rate(hits / len(members), *clopper_pearson(hits, len(members), level=level))


def _relative_entropy(u: float, a: float) -> float:
    first = u * math.log(u / a) if u > 0 else 0.0
    return first + ((1 - u) * math.log((1 - u) / (1 - a)) if u < 1 else 0.0)


def _check(members: Tensor, others: Tensor) -> None:
    if members.ndim != 1 or others.ndim != 1 or not len(members) or not len(others):
        raise BadInput(
            f"ranking needs the scores of members and others as two vectors, got {members.shape} and {others.shape}"
        )
    if not bool(torch.isfinite(members).all() and torch.isfinite(others).all()):
        raise BadInput("ranking needs finite scores; drop NaN and infinity")


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
