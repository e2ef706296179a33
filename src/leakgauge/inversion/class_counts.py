"""How often each class occurs in a batch, from the gradient of the head's bias: E[n | ∂b], rounded to whole labels.

For cross entropy ∂b = p̄ − n/B, with p̄ the mean probabilities that the model gives to the batch. The adversary does not know p̄,
but it can learn or assume how the model answers to each class (:class:`ClassRates`), and from that what p̄ is for given counts.
Nobody says which assumption holds or how even the client's classes are, so all of them are tried, and each counts as much as it
explains ∂b.

If the model is calibrated and the labels are drawn at random, then E[y | x] = p(x), and the best linear estimate of the counts is
B · (E[p] − ∂b): cov(y, p − y) = −cov(p − y), so the coefficient of ∂b is −1. The gradient of the head's weights adds nothing to it:
∂b is one of the columns of (p − y) ⊗ (1, h), and the regression on all of them gives the others the coefficient 0. What remains
unknown is cov(p): the more certain the model is, the less its gradient says about the labels. What the weights do say is which classes
are in the batch: for features h ≥ 0 an entry of row c is negative only if some label is c (``shown``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CONCENTRATIONS: Mapping[float, float] = {0.3: 1, 2.0: 1, 1000.0: 6}
"""Dirichlet priors of the class shares of a batch, and how likely each is: from clients with few classes to balanced draws."""
CONFIDENCES = (0.4, 0.7, 0.9)
"""Mean probabilities of the true class that are tried for a trained model about which nothing else is known."""
UNEVEN_SEEN, UNEVEN_ASSUMED = (0.0, 0.3), (0.1, 0.5)
"""Deviations of the mean probability of a class, as shares of 1/K, that are tried if other inputs show it, and if none do."""
DRIFTS = (0.0, 0.5)
"""How wrong the straight way between the models before and after local steps may be, as shares of what they differ."""
WILD, LOST = 1.5, 0.1
"""Drift, as a multiple of Σ|∂b|, from which local steps threw the model off, and the share of its square by which the mean answers are
then doubted."""
HIDDEN = 0.1
"""How likely a class that is in the batch leaves no trace in its row of the head's gradient."""
ALIKE = 0.12
"""Deviation of the class probabilities between images, as a share of the largest possible, below which a model is untrained."""


@dataclass(frozen=True, eq=False)
class ClassRates:
    """How a model answers to samples of each class, known or assumed with probability ``weight``.

    ``shares`` (K,) is how often each class is expected; ``mean[c]`` (K, K) are the mean probabilities for a sample of class c;
    ``spread`` (K, K) is the covariance of one sample's probabilities around them, ``doubt`` (K, K) that of the mean answer itself, which
    is known from few images or not at all; ``drift`` is how far the mean answer moved during local steps (total variation).
    """

    shares: Tensor
    mean: Tensor
    spread: Tensor
    doubt: Tensor
    drift: float = 0.0
    weight: float = 1.0

    @property
    def alike(self) -> bool:
        """Whether the model answers alike to all samples, as before training."""
        overall = self.shares @ self.mean
        return float(self.spread.trace()) < ALIKE**2 * (1 - float(overall @ overall))

    def doubted(self, uneven: Sequence[float]) -> list[ClassRates]:
        """The same with each deviation of ``uneven`` and of the way of the local steps; together they weigh as much."""
        classes = len(self.shares)
        apart = torch.eye(classes).to(self.doubt) - 1 / classes
        drifts = DRIFTS if self.drift > 1e-3 else DRIFTS[:1]
        variances = [(one / classes) ** 2 + (drift * self.drift) ** 2 / classes for one in uneven for drift in drifts]
        return [
            replace(self, doubt=self.doubt + variance * apart, weight=self.weight / len(variances))
            for variance in variances
        ]


@dataclass(frozen=True, eq=False)
class CountEstimate:
    """``counts`` (K,) add up to the batch size. ``accuracy`` is the expected share of labels that are right, as a multiset."""

    counts: Tensor
    accuracy: float

    @property
    def labels(self) -> Tensor:
        """The labels, in ascending order."""
        return torch.repeat_interleave(torch.arange(len(self.counts), device=self.counts.device), self.counts)


def rates_from_scores(scores: Tensor, *, temperature: float = 1.0) -> ClassRates:
    """Rates from the model's ``scores`` (T, N, K) for N images, at T points on the way of the local steps.

    The images have no labels: image x counts for class c with weight softmax(scores/temperature)_c at the first point.
    """
    path = scores.double().softmax(-1)
    each = path.mean(0)
    weight = (scores[0].double() / temperature).softmax(-1) + 1e-4
    shares, weight = weight.sum(0) / weight.sum(), weight / weight.sum(0)
    mean = weight.T @ each
    spread = (each.T * (weight @ shares)) @ each - (mean.T * shares) @ mean
    doubt = torch.cov(each.T) / len(each)
    return ClassRates(shares, mean, spread, doubt, _drift(path.mean(1)))


def even_rates(shift: Tensor, *, confidence: float) -> ClassRates:
    """Rates of a calibrated model that confuses all classes alike and gives the true one ``confidence`` on average.

    For a calibrated model E‖p‖² = E[p_y], which fixes the spread: E[p pᵀ] = u·1 + v·11ᵀ with K(u + v) equal to ``confidence`` and
    K(u + K·v) = 1. ``shift`` (T, K) is what local steps add to the scores, in expectation, at T points on their way.
    """
    classes = shift.shape[1]
    identity, ones = torch.eye(classes).to(shift.double()), torch.ones(classes, classes).to(shift.double())
    other = (1 - confidence) / (classes - 1)
    mean = other * ones + (confidence - other) * identity
    v = (1 - confidence) / (classes * (classes - 1))
    spread = (confidence / classes - v) * identity + v * ones - mean.T @ mean / classes
    moved = mean * shift.double().softmax(-1)[:, None]
    moved = moved / moved.sum(-1, keepdim=True)
    return ClassRates(ones[0] / classes, moved.mean(0), spread, torch.zeros_like(spread), _drift(moved.mean(1)))


def assumed_rates(shift: Tensor) -> list[ClassRates]:
    """Rates of a trained model about which nothing is known: even ones, more or less confident, but none worse than chance."""
    even = [even_rates(shift, confidence=one) for one in CONFIDENCES if one > 1 / shift.shape[1]]
    return [replace(one, weight=1 / len(even)) for one in even]


def _drift(path: Tensor) -> float:
    return float((path - path[0]).abs().sum(1).max()) / 2


def fit_temperature(scores: Tensor, margin: float, *, smoothing: float = 0.0) -> float:
    """How overconfident the model is on the batch: the temperature T at which labels drawn from softmax(z/T) explain ``margin``.

    ``margin`` is the mean of ⟨y − p, z⟩ over the batch, which the gradient of the head holds: −⟨∂W, W⟩ − ⟨∂b, b⟩. ``scores`` (N, K)
    are of images that stand for the batch.
    """
    z = scores.double()
    expected = (z.softmax(1) * z).sum(1)
    grid = torch.logspace(math.log10(0.7), math.log10(8), 25).tolist()

    def miss(temperature: float) -> float:
        drawn = (1 - smoothing) * (z / temperature).softmax(1) + smoothing / z.shape[1]
        return abs(float(((drawn * z).sum(1) - expected).mean()) - margin)

    return min(grid, key=miss)


def thrown_off(slope: Tensor, possible: Sequence[ClassRates]) -> bool:
    """Whether local steps changed the model's answers by more than the update they left can explain (``WILD``)."""
    return max(rates.drift for rates in possible) > WILD * float(slope.abs().sum())


def estimate_counts(
    slope: Tensor, size: int, possible: Sequence[ClassRates], *, smoothing: float = 0.0, shown: Tensor | None = None
) -> CountEstimate:
    """Counts of ``size`` labels from the mean gradient ``slope`` (K,) of the head's bias, for rates one of which holds.

    The shares s of the classes have a Dirichlet-multinomial prior around those of the rates, and ∂b = A·s − smoothing/K + noise with
    A = ratesᵀ − (1 − smoothing)·1. For each of the ``possible`` rates and ``CONCENTRATIONS`` the posterior mean of the Gaussian
    with these moments is taken, and weighed by the probability of ∂b under them. The sum is rounded to the nearest whole counts
    that respect p̄ ≥ 0: n_c ≥ −B·∂b_c. Where local steps threw the model off (``WILD``), this is near the even guess.

    ``shown`` (K,) marks classes that are certainly in the batch. The others are either all absent, which is as likely as the prior of the
    shares says, or in the batch and hidden, each with the probability ``HIDDEN``; both are tried.

    Ref: Hoeting et al. 1999, Eqs. (1) to (3) — averaging over models by their posterior probabilities
    """
    given = slope + smoothing / len(slope)
    if thrown_off(slope, possible):
        identity, even = torch.eye(len(slope)).to(slope), torch.full_like(slope, 1 / len(slope))
        possible = [
            replace(rates, shares=even, doubt=rates.doubt + LOST * rates.drift**2 * identity) for rates in possible
        ]
    found = [
        _posterior(given, size, rates, concentration, among, weight=weight * rates.weight, kept=1 - smoothing)
        for rates in possible
        for concentration, chance in CONCENTRATIONS.items()
        for among, weight in _drawable(rates.shares, shown, size, concentration, chance)
    ]
    weight = torch.tensor([one.log_weight for one in found]).softmax(0).to(slope)
    each, variance = torch.stack([one.mean for one in found]), torch.stack([one.variance for one in found])
    shares = weight @ each
    unknown = size * (weight @ (variance + (each - shares).square())).sqrt()
    at_least = (-size * given / (1 - smoothing) - 1e-3).ceil().clamp_min(0).long()
    if shown is not None:
        at_least = torch.maximum(at_least, shown.long())
    if int(at_least.sum()) > size:  # noise, or another scale
        at_least = torch.zeros_like(at_least)
    return CountEstimate(_nearest(size * shares, size, at_least), 1 - _rounded_error(unknown, size) / (2 * size))


def _drawable(
    shares: Tensor, shown: Tensor | None, size: int, concentration: float, chance: float
) -> list[tuple[Tensor, float]]:
    """Sets of classes (K,) that may be in the batch, and how likely each is."""
    every = torch.ones_like(shares, dtype=torch.bool)
    if shown is None or not bool(shown.any()):
        return [(every, chance)]
    hidden = HIDDEN ** int((~shown).sum())
    sets = [(every, hidden)] if bool(shown.all()) else [(shown, 1.0), (every, hidden)]
    weighed = [(one, chance * factor * _drawn(shares, one, size, concentration)) for one, factor in sets]
    return [(one, max(weight, 1e-300)) for one, weight in weighed]


def _drawn(shares: Tensor, among: Tensor, size: int, concentration: float) -> float:
    """How probable it is that ``size`` draws hit every class ``among`` (K,) and no other one, taking the classes for independent.

    That a set of classes is missed has the probability Π_{i<B} (α_rest + i)/(α + i), with α = K·concentration in all.
    """
    alpha = len(shares) * concentration * shares.double()

    def missed(rest: Tensor, all_: Tensor) -> Tensor:
        return (rest + size).lgamma() - rest.lgamma() - (all_ + size).lgamma() + all_.lgamma()

    own = alpha[among]
    each = missed((own.sum() - own).clamp_min(1e-9), own.sum()).exp().clamp_max(1 - 1e-9)
    return float((missed(own.sum(), alpha.sum()) + torch.log1p(-each).sum()).exp())


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Mean and variance (K,) of the class shares, and the logarithm of how probable the assumption is."""

    mean: Tensor
    variance: Tensor
    log_weight: float


def _posterior(
    given: Tensor, size: int, rates: ClassRates, concentration: float, among: Tensor, *, weight: float, kept: float
) -> _Posterior:
    identity, every = torch.eye(len(given)).to(given), len(given) * concentration
    usual = rates.shares * among
    alpha = every * usual.sum()
    usual = usual / usual.sum()
    matrix = rates.mean.T - kept * identity
    prior = (usual.diag() - usual[:, None] * usual) * (size + alpha) / (1 + alpha) / size
    total = matrix @ prior @ matrix.T + rates.spread / size + rates.doubt + 1e-7 * identity
    surprise = given - matrix @ usual
    root = torch.linalg.cholesky(total)
    gain = torch.cholesky_solve(matrix @ prior, root).T
    fit = surprise @ torch.cholesky_solve(surprise[:, None], root)[:, 0]
    log_weight = math.log(weight) - float(fit) / 2 - float(root.diagonal().log().sum())
    left = (prior - gain @ matrix @ prior).diagonal().clamp_min(1e-12)
    return _Posterior(usual + gain @ surprise, left, log_weight)


def _nearest(expected: Tensor, size: int, at_least: Tensor) -> Tensor:
    """The whole counts n ≥ ``at_least`` with Σ n = ``size`` that are nearest to ``expected``: one label at a time to the class that
    lacks most, which is optimal because the squared distance is separable and convex."""
    counts = at_least.clone()
    for _ in range(size - int(counts.sum())):
        counts[(expected - counts).argmax()] += 1
    return counts


def _rounded_error(deviation: Tensor, size: int) -> float:
    """Σ_c E|error| of whole counts with Gaussian errors of this ``deviation`` before rounding: Σ_k P(|error| > k + ½)."""
    steps = torch.arange(size).to(deviation) + 0.5
    return float(torch.special.erfc(steps / (deviation[:, None] * math.sqrt(2))).sum())
