"""How long things take, measured by short runs, and how much of them fits into a time."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch

from leakgauge.errors import BadInput
from leakgauge.inversion import watching

FEWEST_STEPS = 50
SHORTEST_TRIAL, LONGEST_TRIAL = 8, 512
"""Steps of a trial; it grows until they take a measurable time."""
MEASURABLE = 0.1
"""Seconds."""
SLOW = 1.0
"""Seconds of a run of one step. From there on a second step is trial enough."""


def seconds_of(text: str) -> float:
    """A duration as people write it.

    >>> seconds_of("90s"), seconds_of("2m"), seconds_of("1h")
    (90.0, 120.0, 3600.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found.group(1)) == 0:
        raise BadInput(f"a budget is a positive time such as 90s, 2m or 1h, got {text!r}")
    return float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)]


@dataclass(frozen=True)
class Cost:
    """Seconds of one step and of what surrounds the steps; two costs add up to that of doing both."""

    fixed: float = 0.0
    step: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.fixed + other.fixed, self.step + other.step)

    def seconds(self, steps: int) -> float:
        return self.fixed + steps * self.step

    def affordable(self, seconds: float, *, fewest: int = FEWEST_STEPS, most: int | None = None) -> int:
        """Steps for which there is time, rounded down to two digits, within ``fewest`` and ``most``.

        >>> Cost(fixed=2.0, step=0.04).affordable(42.3), Cost(step=0.04).affordable(1.0)
        (1000, 50)
        """
        steps = max(fewest, int((seconds - self.fixed) / self.step) if self.step > 0 else 0)
        unit = 10 ** max(0, len(str(steps)) - 2)
        return min(steps // unit * unit, steps if most is None else most)


def elapsed(run: Callable[[], object]) -> float:
    """Seconds of a call, with the work that it leaves to a GPU."""
    began = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def cost_of(run: Callable[[int], object], *, warm: bool = False) -> Cost:
    """The cost of ``run(steps)``, from a run of one step and a longer one. ``warm``: something like it has run before."""
    if not warm:
        run(1)  # the first run of a process looks slower than a longer one
    alone = elapsed(partial(run, 1))
    steps = SHORTEST_TRIAL if alone < SLOW else 1
    while (taken := elapsed(partial(run, 1 + steps))) < alone + MEASURABLE and steps < LONGEST_TRIAL:
        steps *= 4
    step = max(taken - alone, 0.1 * taken) / steps
    return Cost(max(0.0, alone - step), step)


class _Enough(Exception):
    """Ends a run that has been watched long enough."""


def cost_of_steps(run: Callable[[int], object]) -> Cost:
    """As :func:`cost_of`, from one run that is stopped as soon as its steps have taken a measurable time.

    The run reports its steps to :func:`~leakgauge.inversion.watching`; one that does not is timed by :func:`cost_of`. The first step
    warms up and does not count, and a run that is quick is made twice, because the first of a process also warms up what is around
    the steps.
    """
    found, taken = _watched(run)
    if found is not None and taken < SLOW:
        found, _ = _watched(run)
    return cost_of(run, warm=True) if found is None else found


def _watched(run: Callable[[int], object]) -> tuple[Cost | None, float]:
    """The cost, None where fewer than two steps were reported, and the seconds that it took to find it."""
    times: list[float] = []

    def on_step(done: int, total: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        if len(times) > 1 and times[-1] - times[0] > MEASURABLE:
            raise _Enough

    began = time.perf_counter()
    with suppress(_Enough), watching(on_step):
        run(LONGEST_TRIAL)
    taken = time.perf_counter() - began
    if len(times) < 2:
        return None, taken
    step = (times[-1] - times[0]) / (len(times) - 1)
    return Cost(max(0.0, times[0] - began - step), step), taken


def evenly(count: int, kept: int) -> set[int]:
    """``kept`` of the places 0 … count − 1, as far apart as can be, the first and the last among them.

    >>> sorted(evenly(9, 4))
    [0, 3, 5, 8]
    """
    if kept >= count:
        return set(range(count))
    return {round(i * (count - 1) / (kept - 1)) for i in range(kept)}


def expected(place: int, measured: Mapping[int, float]) -> float:
    """Seconds at a place, on the straight line between the measured ones around it; beyond them, those of the nearest."""
    known = sorted(measured)
    after = bisect_left(known, place)
    if after == len(known):
        return measured[known[-1]]
    if known[after] == place or after == 0:
        return measured[known[after]]
    low, high = known[after - 1], known[after]
    share = (place - low) / (high - low)
    return (1 - share) * measured[low] + share * measured[high]


def places_within(count: int, measured: Mapping[int, float], done: Collection[int], seconds: float) -> list[int]:
    """As many of ``count`` places as there is time for, evenly thinned. Those that are ``done`` cost nothing, and the two ends stay."""
    for kept in range(count, 1, -1):
        chosen = evenly(count, kept) | set(done)
        if sum(expected(place, measured) for place in chosen if place not in done) <= seconds:
            return sorted(chosen)
    return sorted(evenly(count, 2) | set(done)) if count > 1 else list(range(count))
