"""How sure a mean over restarts is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Mean of ``n`` restarts and the interval that holds the mean of all restarts with probability ``level``."""

    mean: float
    low: float
    high: float
    n: int
    level: float


ANYWHERE = (-math.inf, math.inf)
POSSIBLE = {"ssim": (-1.0, 1.0), "psnr": (0.0, math.inf), "lpips": (0.0, math.inf)}
"""Between what the means of metrics lie, whatever the images in [0, 1]."""


def interval(
    values: Sequence[float], *, level: float = 0.95, within: tuple[float, float] = ANYWHERE
) -> Interval | None:
    """Student's interval of the mean; None for fewer than two finite values, which say nothing about a spread.

        mean ± t_{(1+level)/2, n−1} · s / √n

    It is cut to ``within``, outside of which no mean can lie: of two restarts it would often reach beyond.

    >>> found = interval([0.1, 0.2, 0.3])
    >>> round(found.low, 3), round(found.high, 3)
    (-0.048, 0.448)
    """
    finite = [value for value in values if math.isfinite(value)]
    n = len(finite)
    if n < 2:
        return None
    mean = sum(finite) / n
    spread = math.sqrt(sum((value - mean) ** 2 for value in finite) / (n - 1))
    from scipy.special import stdtrit  # here, because scipy is slow to import

    half = float(stdtrit(n - 1, (1 + level) / 2)) * spread / math.sqrt(n)
    return Interval(mean, max(mean - half, within[0]), min(mean + half, within[1]), n, level)
