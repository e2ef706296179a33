"""Attacks that add a weighted part to the objective of a matching, once they know the observation."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from leakgauge.core import Observation, Reconstruction, Use, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput
from leakgauge.inversion.known_targets import has_structured_targets, with_known_targets
from leakgauge.inversion.matching import Matching


class Added:
    """What they share: a ``matching``, the ``weight`` of what is added (``ADDED``, for messages), and what it ``NEEDS``."""

    matching: Matching
    weight: float
    ADDED: ClassVar[str]
    NEEDS: ClassVar[frozenset[Use]]

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise BadInput(f"the weight of {self.ADDED} must not be negative, got {self.weight}")

    def uses(self) -> frozenset[Use]:
        return self.matching.uses() | self.NEEDS

    def effort(self) -> tuple[str, int]:
        return self.matching.effort()

    def blind(self) -> Matching:
        """The plain priors from the same start: no signal, and nothing added, because that comes from the signal."""
        return self.matching.blind()

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        if not has_structured_targets(seen):
            return self._attack(victim, seen, seed)
        victim, seen = with_known_targets(victim, seen)
        return replace(self._attack(victim, seen, seed), y=None)

    def _attack(self, victim: Victim, seen: Observation, seed: int) -> Reconstruction:
        raise NotImplementedError
