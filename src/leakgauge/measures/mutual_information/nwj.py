"""The bound of Nguyen, Wainwright and Jordan."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from leakgauge.errors.checked import checked
from leakgauge.measures.mutual_information.critic import CriticFit, Reading, Scores, estimate_with_critic
from leakgauge.measures.mutual_information.estimate import Estimate


@checked
@dataclass(frozen=True)
class NWJ:
    """Lower bound :func:`nwj_bound`: unbiased even in minibatches, but with the largest variance of all."""

    training: CriticFit = field(default_factory=CriticFit)

    def __call__(self, a: Tensor, b: Tensor, /, *, seed: int = 0) -> Estimate:
        return estimate_with_critic(
            a, b, gain=nwj_bound, read=nwj_reading, training=self.training, bound="lower", seed=seed
        )


def nwj_bound(scores: Scores) -> Tensor:
    """1 + E_P[T] − E_Q[exp T]: the published bound E_P[f] − E_Q[exp(f − 1)] with f = T + 1, so T = 0 gives 0.

    Ref: Nguyen et al. 2010, section II — variational bound on the Kullback-Leibler divergence
    """
    return 1 + scores.joint.mean() - scores.product.exp().mean()


def nwj_reading(scores: Scores) -> Reading:
    weights = scores.product.exp()
    return Reading(nwj_bound(scores), scores.joint - scores.by_row(weights) - scores.by_column(weights))
