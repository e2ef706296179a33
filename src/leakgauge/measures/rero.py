"""What no attack can exceed under DP-SGD: reconstruction robustness, with its uses for attributes and membership."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from leakgauge.errors import BadInput

GRID = 2e-4
"""Distance of two points of the grid, as a share of the standard deviation of the summed loss."""
MOST_POINTS, MOST_SUMMED = 2**18, 2**22
"""Points for one step's loss, and for the sum."""
FAR = 9.0
"""Standard deviations of the noise after which one step's loss counts as lost."""
TAIL = 1e-9
"""Probability left out at either end of the sum; it counts as lost."""


@dataclass(frozen=True)
class GaussianSteps:
    """``steps`` = T steps of DP-SGD with noise multiplier ``noise`` = σ, a sample being in each batch with probability ``rate`` = q.

    Everything that the server sees of one sample is then a draw from μ = ∏ ((1 − q) N(0, σ²) + q N(1, σ²)) if the sample is in the data,
    and from ν = ∏ N(0, σ²) if it is not; what else is known about the sample, the model or other samples changes nothing.

    Ref: Hayes et al. 2023, Theorem 2 — the pair that dominates DP-SGD for one sample
    """

    noise: float
    rate: float = 1.0
    steps: int = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.noise, int | float) and 0 < self.noise < math.inf):
            raise BadInput(
                f"a bound needs a positive noise multiplier, got {self.noise}; without noise no bound exists"
            )
        if not 0 < self.rate <= 1:
            raise BadInput(f"the sampling rate must be above 0 and at most 1, got {self.rate}")
        if not isinstance(self.steps, int) or self.steps < 1:
            raise BadInput(f"a bound needs a number of steps of at least 1, got {self.steps}")


def reconstruction_bound(steps: GaussianSteps, prior: float) -> float:
    """γ: the highest probability with which any attack succeeds, where guessing without the updates succeeds with ``prior`` = κ.

    γ(κ) = sup { μ(E) : ν(E) ≤ κ } over all events E, which by Neyman and Pearson are those of largest likelihood ratio. Success is whatever
    can be checked about one sample: an image close enough, the value of one attribute, the sample's presence. At q = 1 this is
    Φ(Φ⁻¹(κ) + √T/σ); else the sum of T privacy losses is computed on a grid that never understates γ.

    Ref: Hayes et al. 2023, Theorem 2 and Corollary 3 — reconstruction robustness of DP-SGD

    >>> round(reconstruction_bound(GaussianSteps(noise=1.0), 0.1), 3)
    0.389
    """
    if not 0 <= prior <= 1:
        raise BadInput(f"the prior probability of success must be between 0 and 1, got {prior}")
    if prior in (0.0, 1.0):
        return float(prior)
    if steps.rate == 1:
        from scipy.special import ndtr, ndtri  # here, because scipy is slow to import

        return float(ndtr(ndtri(prior) + math.sqrt(steps.steps) / steps.noise))
    loss, sent, lost = _loss_distribution(steps)
    without = sent * np.exp(-loss)  # ν of the same events
    above = np.concatenate(([0.0], np.cumsum(without[::-1])))  # ν of the k largest losses
    reached = np.concatenate(([0.0], np.cumsum(sent[::-1])))
    whole = int(np.searchsorted(above, prior, side="right")) - 1
    gained = lost + reached[whole]
    if whole < len(sent):  # part of the next event, by a coin
        gained += (prior - above[whole]) * math.exp(loss[len(sent) - 1 - whole])
    return float(min(1.0, gained))


def membership_bound(steps: GaussianSteps, false_positives: float) -> float:
    """The highest true-positive rate of any test for one sample's presence at the rate ``false_positives``: γ at κ = FPR."""
    return reconstruction_bound(steps, false_positives)


def noise_for(bound: float, prior: float, *, rate: float = 1.0, steps: int = 1) -> float:
    """The smallest noise multiplier (to 0.1 %) at which no attack succeeds with more than ``bound``, against ``prior`` by guessing."""
    if not 0 < prior < bound < 1:
        raise BadInput(f"the bound must be between the prior and 1, got a bound of {bound} with a prior of {prior}")

    def holds(noise: float) -> bool:
        return reconstruction_bound(GaussianSteps(noise, rate, steps), prior) <= bound

    high = 1.0
    while not holds(high):
        high *= 2
        if high > 1e6:
            raise BadInput(
                f"no noise multiplier up to 1e6 bounds success at {bound}; ask for a larger bound or fewer steps"
            )
    low = high / 2
    while holds(low):
        low /= 2
        if low < 1e-3:
            return low
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@lru_cache(maxsize=64)
def _loss_distribution(steps: GaussianSteps) -> tuple[np.ndarray, np.ndarray, float]:
    """Values of the privacy loss ln(μ/ν) of all steps, their probabilities under μ, and the probability that counts as lost.

    One step's loss is put on a grid by splitting what is between two points among them, with μ and ν both kept: the pair of the grid
    dominates the true one. All steps are one power of its Fourier transform.

    Ref: Doroshenko et al. 2022, section 4 — connecting the dots of a privacy loss distribution
    """
    from scipy.special import ndtr

    sigma, q, count = steps.noise, steps.rate, steps.steps
    bottom, top = math.log1p(-q), float(_loss(np.array(1 + FAR * sigma), sigma, q))
    h = max(GRID * _spread(steps), (top - bottom) / MOST_POINTS)
    grid = h * np.arange(math.floor(bottom / h), math.ceil(top / h) + 1)
    with np.errstate(divide="ignore"):
        edges = sigma**2 * np.log(np.clip((np.exp(grid) - (1 - q)) / q, 0, None)) + 0.5  # w whose loss is on the grid
    edges[0], edges[-1] = -np.inf, 1 + FAR * sigma
    without = np.diff(ndtr(edges / sigma))
    shared = (1 - q) * without + q * np.diff(ndtr((edges - 1) / sigma))
    low, high = np.exp(grid[:-1]), np.exp(grid[1:])
    upper = np.clip((shared - low * without) / (high - low), 0, without)  # of ν, what goes to the higher point
    sent = np.zeros(len(grid))
    sent[1:] += high * upper
    sent[:-1] += low * (without - upper)
    lost = max(0.0, 1.0 - float(sent.sum()))
    loss, summed = _summed(grid, sent, count, h)
    return loss, summed, 1 - (1 - lost) ** count + 2 * TAIL


def _loss(w: np.ndarray, sigma: float, q: float) -> np.ndarray:
    """ln(μ/ν) of one step at the draw w: ln(1 − q + q exp((2w − 1)/(2σ²)))."""
    return np.logaddexp(math.log1p(-q), math.log(q) + (2 * w - 1) / (2 * sigma**2))


def _spread(steps: GaussianSteps) -> float:
    """Standard deviation of the sum of losses under ν, which only sets the distance of the grid's points."""
    w = np.linspace(-8 * steps.noise, 8 * steps.noise, 4001)
    density = np.exp(-(w**2) / (2 * steps.noise**2))
    density /= density.sum()
    loss = _loss(w, steps.noise, steps.rate)
    return math.sqrt(steps.steps * float((density * (loss - (density * loss).sum()) ** 2).sum()))


def _summed(grid: np.ndarray, sent: np.ndarray, count: int, h: float) -> tuple[np.ndarray, np.ndarray]:
    """The sum of ``count`` independent losses, in ascending order; the range leaves out at most ``TAIL`` at either end."""
    low = max(count * grid[0], -_tail(-grid[::-1], sent[::-1], count))
    high = min(count * grid[-1], _tail(grid, sent, count))
    start, end = math.floor(low / h), math.ceil(high / h)
    size = 2 ** math.ceil(math.log2(max(end - start + 1, len(grid), 2)))
    if size > MOST_SUMMED:
        raise BadInput(f"the bound of {count} steps needs a grid of {size} points; use more noise or fewer steps")
    summed = np.clip(np.fft.irfft(np.fft.rfft(sent, size) ** count, size), 0, None)
    place = (np.arange(size) + count * round(grid[0] / h) - start) % size  # the transform wraps around
    ordered = np.empty(size)
    ordered[place] = summed
    return h * (start + np.arange(size)), ordered


def _tail(grid: np.ndarray, sent: np.ndarray, count: int) -> float:
    """A value that the sum exceeds with at most ``TAIL``: the least over t of (T ln E exp(tL) − ln TAIL) / t.

    Ref: Chernoff 1952 — exponential bound of a tail
    """
    best = math.inf
    positive = sent > 0
    values, logs = grid[positive], np.log(sent[positive])
    for t in np.geomspace(1e-2, 1e5, 120):
        terms = logs + t * values
        peak = float(terms.max())
        moment = peak + math.log(float(np.exp(terms - peak).sum()))
        best = min(best, (count * moment - math.log(TAIL)) / t)
    return best
