"""CLUB: an upper bound from a model of one side given the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.critic import CriticFit, Scorer, Scores, fit, scores
from leakgauge.measures.mutual_information.estimate import Estimate, Pairs, check_pairs, normal_interval, split_pairs
from leakgauge.measures.mutual_information.scale import standardise

LOG_VARIANCE = 6.0
"""Largest magnitude of the log-variance: a variance near zero would make everything NaN."""


@checked
@dataclass(frozen=True)
class CLUB:
    """vCLUB: :func:`club_value` of a Gaussian q(b | a) with mean and variance from a network.

    An upper bound **only if** q is close enough to p(b | a) (section 3.2 of the paper says how close); with a poor q it can be below
    the truth, even below zero. For the exact p(b | a) it is the Jeffreys divergence KL(P‖Q) + KL(Q‖P), which is never below the
    mutual information: ρ²/(1 − ρ²) for two Gaussians of correlation ρ.
    """

    training: CriticFit = field(default_factory=CriticFit)

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        rng = torch.Generator().manual_seed(seed)
        train, valid, held = (part.to(torch.float32) for part in standardise(*split_pairs(check_pairs(a, b), seed)))
        model = Conditional(train.a.shape[1], train.b.shape[1], hidden=self.training.hidden, rng=rng)
        fit(model, _likelihood, _likelihood, train=train, valid=valid, training=self.training, rng=rng)
        with torch.no_grad():
            model = model.double()
            outside, inside = (
                scores(model, part.to(torch.float64), shifts=self.training.shifts) for part in (held, train)
            )
        value = float(club_value(outside))
        added = outside.joint - outside.by_row(outside.product) - outside.by_column(outside.product)
        low, high = normal_interval(value, added)
        return Estimate(value, low, high, float(club_value(inside)), len(held), "upper")


class Conditional(nn.Module):
    """log q(b | a) up to a constant, with q a Gaussian of independent coordinates; scores pairs like a critic."""

    def __init__(self, p: int, q: int, *, hidden: tuple[int, ...], rng: torch.Generator) -> None:
        super().__init__()
        self.network = Scorer(p, 0, hidden=hidden, out=2 * q, rng=rng)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        mean, raw = self.network(a, b[..., :0]).chunk(2, -1)
        log_variance = LOG_VARIANCE * torch.tanh(raw / LOG_VARIANCE)
        terms = (b - mean).square() / log_variance.exp() + log_variance
        return -0.5 * terms.sum(-1, keepdim=True)


def _likelihood(model: nn.Module, pairs: Pairs) -> Tensor:
    return model(pairs.a, pairs.b).mean()


def club_value(scores: Scores) -> Tensor:
    """E_P[log q(b | a)] − E_Q[log q(b | a)], P the true pairs and Q the mismatched ones.

    Ref: Cheng et al. 2020, section 3.2 — vCLUB
    """
    return scores.joint.mean() - scores.product.mean()
