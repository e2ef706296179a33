"""MINE: the Donsker-Varadhan bound with a corrected gradient."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.critic import CriticFit, Scores, estimate_with_critic
from leakgauge.measures.mutual_information.dv import dv_reading, log_mean_exp
from leakgauge.measures.mutual_information.estimate import Estimate


@checked
@dataclass(frozen=True)
class MINE:
    """Belghazi et al. 2018: as :class:`DV`, but the denominator of the gradient is a moving average.

    ``decay`` is the share of the average that each step keeps. Value and interval are those of the held-out bound.
    """

    decay: float = 0.99
    training: CriticFit = field(default_factory=CriticFit)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise BadInput(f"MINE needs a decay from 0 to below 1, got {self.decay}")

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        gain = MovingAverageGain(self.decay)
        return estimate_with_critic(a, b, gain=gain, read=dv_reading, training=self.training, bound="lower", seed=seed)


class MovingAverageGain:
    """E_P[T] − E_Q[exp T] / m with m the moving average of E_Q[exp T], through which no gradient flows.

    If m is the mean of the minibatch, this has the gradient of the Donsker-Varadhan bound, which is biased.

    Ref: Belghazi et al. 2018, Eq. (12) and section 3.2 — gradient with an exponential moving average
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.log_average: Tensor | None = None

    def __call__(self, scores: Scores) -> Tensor:
        log_mean = log_mean_exp(scores.product)
        now = log_mean.detach()
        if self.log_average is None:
            self.log_average = now
        else:
            rates = torch.tensor([self.decay, 1 - self.decay]).to(now).log()  # in logarithms, as exp T may overflow
            self.log_average = torch.logsumexp(torch.stack([self.log_average, now]) + rates, 0)
        return scores.joint.mean() - (log_mean - self.log_average).exp()
