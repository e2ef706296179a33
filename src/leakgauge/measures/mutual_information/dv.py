"""The Donsker-Varadhan bound with a trained critic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.critic import CriticFit, Reading, Scores, estimate_with_critic
from leakgauge.measures.mutual_information.estimate import Estimate


@checked
@dataclass(frozen=True)
class DV:
    """Lower bound :func:`dv_bound`, with a critic trained on that bound and scored on held-out pairs.

    In a minibatch the logarithm of the mean biases the gradient. The held-out value still errs on the safe side for light
    tails. With few pairs per nat it can fall far below zero.
    """

    training: CriticFit = field(default_factory=CriticFit)

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        return estimate_with_critic(
            a, b, gain=dv_bound, read=dv_reading, training=self.training, bound="lower", seed=seed
        )


def dv_bound(scores: Scores) -> Tensor:
    """E_P[T] − log E_Q[exp T] with P the true pairs (``scores.joint``) and Q the mismatched ones (``scores.product``).

    At most I(A; B) for any fixed T; equal to it if T = log dP/dQ + constant.

    Ref: Donsker and Varadhan 1975 — variational form of the Kullback-Leibler divergence
    Ref: Meng et al. 2025, Eq. (4) — lower bound on the mutual information of data and gradients
    """
    return scores.joint.mean() - log_mean_exp(scores.product)


def dv_reading(scores: Scores) -> Reading:
    """The bound, and each pair's contribution by the delta method."""
    weights = (scores.product - log_mean_exp(scores.product)).exp()  # exp T / E_Q[exp T], mean one
    added = scores.joint - scores.by_row(weights) - scores.by_column(weights)
    return Reading(dv_bound(scores), added)


def log_mean_exp(values: Tensor) -> Tensor:
    """log of the mean of exp(values)."""
    return torch.logsumexp(values.flatten(), 0) - math.log(values.numel())
