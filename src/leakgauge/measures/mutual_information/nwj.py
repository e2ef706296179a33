"""The bound of Nguyen, Wainwright and Jordan."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from leakgauge.measures.mutual_information.critic import Reading, Scores, Training, estimated
from leakgauge.measures.mutual_information.estimate import Estimate


@dataclass(frozen=True)
class NWJ:
    """Lower bound :func:`nwj_bound`: unbiased also in minibatches, at the price of the largest variance of all."""

    training: Training = field(default_factory=Training)

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        return estimated(a, b, gain=nwj_bound, read=nwj_reading, training=self.training, bound="lower", seed=seed)


def nwj_bound(scores: Scores) -> Tensor:
    """1 + E_P[T] − E_Q[exp T]: the published bound E_P[f] − E_Q[exp(f − 1)] with f = T + 1, so that T = 0 gives 0.

    Ref: Nguyen et al. 2010, section II — variational bound on the Kullback-Leibler divergence
    """
    return 1 + scores.joint.mean() - scores.product.exp().mean()


def nwj_reading(scores: Scores) -> Reading:
    weights = scores.product.exp()
    return Reading(nwj_bound(scores), scores.joint - scores.by_row(weights) - scores.by_column(weights))
