"""The exact interval of a counted rate."""

from __future__ import annotations

from leakgauge.errors import BadInput


def clopper_pearson(hits: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a success rate after ``hits`` = k of ``trials`` = n, at confidence ``level`` = 1 - α.

    low = B(α/2; k, n-k+1), high = B(1-α/2; k+1, n-k) with B the quantile of the beta distribution; (0, 1) without
    trials. It covers the true rate with at least the stated probability, for any rate.

    Ref: Clopper and Pearson 1934, section 3 — exact binomial interval

    >>> clopper_pearson(0, 10)[0], round(clopper_pearson(0, 10)[1], 4)
    (0.0, 0.3085)
    """
    if not 0 <= hits <= trials:
        raise BadInput(f"a rate needs between 0 and {trials} hits, got {hits}")
    if not 0 < level < 1:
        raise BadInput(f"a confidence level must be between 0 and 1, got {level}")
    tail = (1 - level) / 2
    from scipy.special import betaincinv  # here, because scipy is slow to import

    low = float(betaincinv(hits, trials - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - tail)) if hits < trials else 1.0
    return low, high
