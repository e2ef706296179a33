"""The split-inference paper's entropy bounds. Trend indicators, not guarantees.

They bound the entropy of features by that of a Gaussian with the same trace. For images in [0, 1] the entropy H(x) is at most 0
and the subtracted term is positive at nearly every cut, so "H(x|z) ≥ a negative number" says nothing. The value changes with any
rescaling of x or z. The trace is spread over all D dimensions although few of them carry variance (see
:func:`leakgauge.measures.entropy.effective_rank`). What remains is a number that follows the spread of the features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakgauge.errors import BadInput
from leakgauge.measures.radius import Radii

NOT_A_GUARANTEE = "trend indicator, not a guarantee"


@dataclass(frozen=True)
class TrendIndicator:
    """A bound in nats per dimension. Show ``meaning`` wherever the number is shown."""

    nats_per_dimension: float
    dimensions: int
    meaning: str = NOT_A_GUARANTEE

    @property
    def nats(self) -> float:
        return self.nats_per_dimension * self.dimensions


def feature_entropy(radii: Radii) -> TrendIndicator:
    """h(Z) ≤ d/2·ln(2πe σ²) with σ² = tr Σ / d, from ``radii.total`` = tr Σ and ``radii.dimensions`` = d.

    Ref: Liu and Zhu 2025, Eq. (3) — entropy bound of feature-level representations
    """
    return TrendIndicator(_gaussian(radii.total, radii.dimensions), radii.dimensions)


def decision_entropy(radii: Radii) -> TrendIndicator:
    """h(Z) ≤ max_c D/2·ln(2πe R_c²/D) + ln K over the K classes, from ``radii.largest`` = max_c R_c².

    Ref: Liu and Zhu 2025, Eq. (4) — entropy bound of decision-level representations
    """
    d = radii.dimensions
    return TrendIndicator(_gaussian(radii.largest, d) + math.log(len(radii.per_class)) / d, d)


def conditional_entropy(input_nats: float, sent: TrendIndicator) -> float:
    """H(x|z) ≥ H(x) - H(z) in nats, with H(x) = ``input_nats`` and the bound of H(z) = ``sent``.

    Ref: Liu and Zhu 2025, Eq. (5) — lower bound of the input's entropy given the features
    """
    return input_nats - sent.nats


def quantise(entropy: TrendIndicator, *, step: float) -> TrendIndicator:
    """H(Z_Δ) ≈ h(Z) + D·ln(1/Δ): Shannon entropy of features rounded to multiples of Δ = ``step``.

    Ref: Liu and Zhu 2025, Appendix B — entropy after uniform quantisation
    """
    if not step > 0:
        raise BadInput(f"quantisation needs a positive step, got {step}")
    return TrendIndicator(entropy.nats_per_dimension - math.log(step), entropy.dimensions)


def _gaussian(trace: float, dimensions: int) -> float:
    """½ ln(2πe·trace/D): entropy per dimension of a Gaussian with evenly spread variance; -∞ without variance."""
    return 0.5 * math.log(2 * math.pi * math.e * trace / dimensions) if trace > 0 else -math.inf
