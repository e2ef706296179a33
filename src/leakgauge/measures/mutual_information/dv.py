"""The Donsker-Varadhan bound with a trained critic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.measures.mutual_information.critic import Reading, Scores, Training, estimated
from leakgauge.measures.mutual_information.estimate import Estimate


@dataclass(frozen=True)
class DV:
    """Lower bound :func:`dv_bound`, with a critic trained on that bound and scored on held-out pairs.

    In a minibatch the logarithm of the mean biases the gradient; held out, its value still errs to the safe side for
    light tails. With few pairs per nat it can fall far below zero.
    """

    training: Training = field(default_factory=Training)

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        return estimated(a, b, gain=dv_bound, read=dv_reading, training=self.training, bound="lower", seed=seed)


def dv_bound(scores: Scores) -> Tensor:
    """E_P[T] − log E_Q[exp T] with P the true pairs (``scores.joint``) and Q the mismatched ones (``scores.product``).

    At most I(A; B) for any fixed T; equal to it for T = log dP/dQ + constant.

    Ref: Donsker and Varadhan 1975 — variational form of the Kullback-Leibler divergence
    Ref: Meng et al. 2025, Eq. (4) — lower bound on the mutual information of data and gradients
    """
    return scores.joint.mean() - log_mean_exp(scores.product)


def dv_reading(scores: Scores) -> Reading:
    """The bound, and by the delta method what each pair adds to it."""
    weights = (scores.product - log_mean_exp(scores.product)).exp()  # exp T / E_Q[exp T], mean one
    added = scores.joint - scores.by_row(weights) - scores.by_column(weights)
    return Reading(dv_bound(scores), added)


def log_mean_exp(values: Tensor) -> Tensor:
    """log of the mean of exp(values), over all of them."""
    return torch.logsumexp(values.flatten(), 0) - math.log(values.numel())
