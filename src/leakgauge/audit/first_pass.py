"""Which cuts a first pass can afford: where the time is short, they are thinned evenly, and the first and the last always stay."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping

SHARE = 0.5
"""Time of the first pass as a part of the time that is given to the decoders after it."""


def tried_first(count: int) -> list[int]:
    """The places whose cuts are attacked before the others, to see what they cost: the first, the middle and the last."""
    return sorted({0, (count - 1) // 2, count - 1}) if count else []


def evenly(count: int, kept: int) -> set[int]:
    """``kept`` of the places 0 … count − 1, as far apart as can be, the first and the last among them.

    >>> sorted(evenly(9, 4))
    [0, 3, 5, 8]
    """
    if kept >= count:
        return set(range(count))
    return {round(i * (count - 1) / (kept - 1)) for i in range(kept)}


def expected(place: int, measured: Mapping[int, float]) -> float:
    """Seconds at a place on the straight line between the measured ones around it; beyond them, those of the nearest."""
    known = sorted(measured)
    after = bisect_left(known, place)
    if after == len(known):
        return measured[known[-1]]
    if known[after] == place or after == 0:
        return measured[known[after]]
    low, high = known[after - 1], known[after]
    share = (place - low) / (high - low)
    return (1 - share) * measured[low] + share * measured[high]


def affordable(count: int, measured: Mapping[int, float], done: Collection[int], seconds: float) -> list[int]:
    """As many places, evenly thinned, as the ``seconds`` last for; ``done`` ones cost nothing and stay. Never fewer than the two ends."""
    for kept in range(count, 1, -1):
        chosen = evenly(count, kept) | set(done)
        if sum(expected(place, measured) for place in chosen if place not in done) <= seconds:
            return sorted(chosen)
    return sorted(evenly(count, 2) | set(done)) if count > 1 else list(range(count))
