"""SMILE: a critic trained as a classifier, and a clipped log-partition."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.critic import CriticFit, Reading, Scores, estimate_with_critic
from leakgauge.measures.mutual_information.dv import log_mean_exp
from leakgauge.measures.mutual_information.estimate import Estimate


@checked
@dataclass(frozen=True)
class SMILE:
    """Song and Ermon 2020: trained on the Jensen-Shannon bound, read by :func:`smile_value` with ``clip`` = τ.

    Clipping removes the variance of the Donsker-Varadhan bound, but also its guarantee: the value is not a bound.
    """

    clip: float = 5.0
    training: CriticFit = field(default_factory=CriticFit)

    def __post_init__(self) -> None:
        if self.clip <= 0:
            raise BadInput(f"SMILE needs a positive clip, got {self.clip}")

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        return estimate_with_critic(
            a,
            b,
            gain=jensen_shannon_bound,
            read=lambda scores: smile_reading(scores, clip=self.clip),
            check=jensen_shannon_bound,  # the clipped value can grow with an ever steeper critic; this one cannot
            training=self.training,
            bound="none",
            seed=seed,
        )


def jensen_shannon_bound(scores: Scores) -> Tensor:
    """E_P[log σ(T)] + E_Q[log σ(−T)]: largest at T = log dP/dQ.

    Ref: Nowozin et al. 2016, section 2 — variational bound on the Jensen-Shannon divergence, up to constants
    """
    return F.logsigmoid(scores.joint).mean() + F.logsigmoid(-scores.product).mean()


def smile_value(scores: Scores, *, clip: float) -> Tensor:
    """E_P[T] − log E_Q[clip(exp T, exp −τ, exp τ)] with τ = ``clip``.

    Ref: Song and Ermon 2020, section 4 — SMILE
    """
    return scores.joint.mean() - log_mean_exp(scores.product.clamp(-clip, clip))


def smile_reading(scores: Scores, *, clip: float) -> Reading:
    clipped = scores.product.clamp(-clip, clip)
    weights = (clipped - log_mean_exp(clipped)).exp()
    added = scores.joint - scores.by_row(weights) - scores.by_column(weights)
    return Reading(smile_value(scores, clip=clip), added)
