"""How well a score separates members from others: AUC and true-positive rate, each with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.measures.binomial import clopper_pearson


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
