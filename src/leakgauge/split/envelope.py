"""The data-processing envelope: a cut leaks at least as much as any deeper one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

SLACK = 0.02
"""Relative excess over the envelope from which a kink is reported; anything less is training noise."""
FLOOR = 0.002
"""An excess that is never a kink: both reconstructions then look like copies."""


def envelope(errors: Sequence[float]) -> tuple[float, ...]:
    """e*(l) = min_{k ≥ l} e(k) of reconstruction errors by depth, shallowest first.

    With the features of cut l an adversary can run the following layers and attack any deeper cut k instead, so the error at l is
    at most that at k. NaN, a failed attack, does not count.

    >>> envelope([0.2, 0.1, 0.4])
    (0.1, 0.1, 0.4)

    Ref: Liu and Zhu 2025, Eq. (2) — the data-processing inequality along the layers
    """
    usable = [error if error == error else float("inf") for error in errors]  # NaN is not equal to itself
    return tuple(accumulate(reversed(usable), min))[::-1]


def kinks(names: Sequence[str], errors: Sequence[float], *, slack: float = SLACK) -> tuple[str, ...]:
    """Names of the cuts where the attack does worse than at a deeper cut: it was trained too little or is too weak.

    >>> kinks(["a", "b", "c"], [0.2, 0.1, 0.4])
    ('a',)
    """
    best = envelope(errors)
    return tuple(
        name
        for name, error, least in zip(names, errors, best, strict=True)
        if not error <= least * (1 + slack) + FLOOR  # NaN is a kink too
    )
