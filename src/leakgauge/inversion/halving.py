"""Successive halving: stop hopeless restarts early."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.errors import BadInput


@dataclass(frozen=True)
class Halving:
    """At each fraction ``at`` of the run, continues only with the share ``keep`` of restarts of lowest objective.

    A restart that stops early keeps its best candidate. Off in every recipe: papers run all restarts to the end.

    Ref: Jamieson and Talwalkar 2016, Algorithm 1 — successive halving

    >>> Halving().drops(32, 1000)
    {100: 16, 250: 8, 500: 4}
    """

    at: tuple[float, ...] = (0.1, 0.25, 0.5)
    keep: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.keep < 1 or not all(0 < fraction < 1 for fraction in self.at):
            raise BadInput(f"Halving needs fractions between 0 and 1, got {self}")

    def drops(self, restarts: int, steps: int) -> dict[int, int]:
        """How many restarts remain from each step on."""
        left, plan = restarts, {}
        for fraction in sorted(self.at):
            left = max(1, round(left * self.keep))
            plan[int(fraction * steps)] = left
        return plan
