"""InfoNCE: find the true partner among K candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.critic import CriticFit, Reading, Scores, estimate_with_critic
from leakgauge.measures.mutual_information.estimate import Estimate, check_pairs, held_out_count


@checked
@dataclass(frozen=True)
class InfoNCE:
    """Lower bound :func:`infonce_bound`, never above its ``ceiling`` ln K.

    ``candidates`` is K. With fewer held-out pairs, K is their number, and the ceiling falls accordingly. A value near the
    ceiling means "at least this much": use more candidates to see more.
    """

    candidates: int = 64
    training: CriticFit = field(default_factory=CriticFit)

    def __post_init__(self) -> None:
        if self.candidates < 2:
            raise BadInput(f"InfoNCE needs two candidates or more, got {self.candidates}")

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        k = min(self.candidates, held_out_count(len(check_pairs(a, b))))
        training = replace(
            self.training, batch=k, shifts=k - 1
        )  # scored with the number of candidates used in training
        return estimate_with_critic(
            a,
            b,
            gain=infonce_bound,
            read=infonce_reading,
            training=training,
            bound="lower",
            seed=seed,
            ceiling=math.log(k),
        )


def infonce_bound(scores: Scores) -> Tensor:
    """mean over pairs of log( exp T(a,b) / (1/K) Σ_k exp T(a,b_k) ), with the true partner among the K = s + 1 candidates.

    Ref: van den Oord et al. 2018, Eq. (4) — InfoNCE; its bound ln K − loss ≤ I(A; B)
    """
    return _per_pair(scores).mean()


def infonce_reading(scores: Scores) -> Reading:
    return Reading(infonce_bound(scores), _per_pair(scores))


def _per_pair(scores: Scores) -> Tensor:
    every = torch.cat([scores.joint[:, None], scores.product], 1)
    return scores.joint - torch.logsumexp(every, 1) + math.log(every.shape[1])
