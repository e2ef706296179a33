"""Rényi differential privacy of the sampled Gaussian mechanism, and a filter for adaptively chosen noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache

from leakgauge.errors import BadInput, LeakgaugeError

ORDERS = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128)
"""Orders for a filter. Each order adds to its cost, so there are few."""
FINE = (*range(2, 65), 128, 256, 512)
"""Orders for an ε that is computed once, where more orders cost nothing."""


class Overspent(LeakgaugeError):
    """The requested step would exceed the budget. Do not take it."""


@lru_cache(maxsize=4096)  # a run repeats a few distinct steps many times
def sampled_gaussian(order: int, *, noise: float, rate: float) -> float:
    """Rényi divergence bound ε(α) of one step of DP-SGD, for integer α = ``order`` ≥ 2.

    ε(α) = ln Σ_k C(α, k)(1-q)^(α-k) q^k exp((k² - k)/(2σ²)) / (α - 1), with ``noise`` = σ the noise multiplier and
    ``rate`` = q the probability that a sample is in the batch; α/(2σ²) at q = 1.

    Ref: Mironov et al. 2019, section 3.3 — integer orders
    """
    if order < 2 or order != int(order):
        raise BadInput(f"orders must be integers of at least 2, got {order}")
    if noise <= 0 or not math.isfinite(noise):
        raise BadInput(
            f"the noise multiplier must be positive, got {noise}; without noise there is no privacy to account for"
        )
    if not 0 <= rate <= 1:
        raise BadInput(f"the sampling rate must be between 0 and 1, got {rate}")
    if rate == 0:
        return 0.0
    if rate == 1:
        return order / (2 * noise**2)
    terms = [
        math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-rate) + k * math.log(rate) + (k * k - k) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    largest = max(terms)
    moment = largest + math.log(sum(math.exp(term - largest) for term in terms))
    return max(0.0, moment) / (order - 1)


def spent_epsilon(*, noise: float, rate: float, steps: int, delta: float, orders: tuple[int, ...] = FINE) -> float:
    """ε of ``steps`` steps of DP-SGD with constant noise multiplier and sampling rate, at the best order.

    ε = min over α of steps·ε(α) + ln((α − 1)/α) − (ln δ + ln α)/(α − 1), but at least 0.

    Ref: Balle et al. 2020, Theorem 21 — from Rényi to approximate differential privacy
    """
    if steps < 0 or not 0 < delta < 1:
        raise BadInput(f"an ε needs a number of steps and a delta within (0, 1), got {steps} and {delta}")
    spent = {order: steps * sampled_gaussian(order, noise=noise, rate=rate) for order in orders}
    least = min(
        sum_ + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, sum_ in spent.items()
    )
    return max(0.0, least)


def joint_multiplier(*multipliers: float) -> float:
    """The noise multiplier z of one Gaussian mechanism equivalent to several on the *same* batch.

    z = (Σ zᵢ^-2)^(-1/2) with ``multipliers`` = zᵢ. Each zᵢ is fixed before the batch is drawn; a later query may depend on the
    answer of an earlier one, because Gaussian mechanisms compose to a Gaussian one. Charge one sampled mechanism with z.
    Charging each query separately at the sampling rate would be too little; that is the price of independently drawn batches.

    Ref: Andrew et al. 2021, Theorem 1 — z = (z_Δ^-2 + (2σ_b)^-2)^(-1/2)
    """
    if not multipliers or min(multipliers) <= 0:
        raise BadInput(f"noise multipliers must be positive, got {multipliers}")
    return math.fsum(z**-2 for z in multipliers) ** -0.5


def remaining_multiplier(total: float, other: float) -> float:
    """The multiplier that, together with ``other`` on the same batch, gives ``total``: (total^-2 - other^-2)^(-1/2)."""
    if not 0 < total < other:
        raise BadInput(
            f"a query with noise multiplier {other:g} alone uses up what {total:g} allows for the whole step; "
            f"give the query more noise"
        )
    return (total**-2 - other**-2) ** -0.5


@dataclass(frozen=True)
class RDPFilter:
    """A budget (``eps``, ``delta``) for steps with noise that may depend on earlier *released* outputs. Immutable.

    ``spend`` returns the filter after a step. If it raises :class:`Overspent`, do not take the step. A step is allowed while at
    least one order α has Σ ε_t(α) ≤ eps - ln(m/delta)/(α - 1), with m orders.

    Why this holds: for one order, the privacy loss stopped before the sum crosses its bound has E exp((α-1)L) ≤
    exp((α-1)·bound) even for adaptively chosen parameters, so P(L > eps) ≤ delta/m. If order α* allowed the last step, the
    loss is the stopped loss of α*; the union over all m orders gives delta. The noise may be a function of earlier outputs, of
    public data, or of canaries measured on released gradients. It may not be a function of a critic on private gradients,
    even with a lower limit on the noise.

    Ref: Feldman and Zrnic 2021, section 4 — a filter for adaptively chosen Rényi parameters
    """

    eps: float
    delta: float
    orders: tuple[int, ...] = ORDERS
    spent: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(self.orders))
        if self.eps <= 0 or not 0 < self.delta < 1 or not self.orders:
            raise BadInput(f"a budget needs eps > 0, delta within (0, 1) and orders, got {self.eps}, {self.delta}")
        if max(self.limits()) <= 0:
            raise BadInput(f"eps = {self.eps} is too small for delta = {self.delta} at these orders; add larger orders")
        object.__setattr__(self, "spent", self.spent or (0.0,) * len(self.orders))

    def limits(self) -> tuple[float, ...]:
        """How much each order may spend; not positive for an order that cannot meet this budget."""
        return tuple(self.eps - math.log(len(self.orders) / self.delta) / (order - 1) for order in self.orders)

    def allows(self, *, noise: float, rate: float) -> bool:
        """Whether a step with this noise multiplier and sampling rate stays within the budget."""
        return any(a <= b for a, b in zip(self._after(noise, rate), self.limits(), strict=True))

    def spend(self, *, noise: float, rate: float) -> RDPFilter:
        """The filter after such a step; raises :class:`Overspent` if that would exceed the budget."""
        if not self.allows(noise=noise, rate=rate):
            raise Overspent(
                f"a step with noise multiplier {noise:g} and rate {rate:g} would exceed eps = {self.eps:g} at "
                f"delta = {self.delta:g}; add noise or stop"
            )
        return replace(self, spent=self._after(noise, rate))

    def _after(self, noise: float, rate: float) -> tuple[float, ...]:
        steps = (sampled_gaussian(order, noise=noise, rate=rate) for order in self.orders)
        return tuple(a + b for a, b in zip(self.spent, steps, strict=True))
