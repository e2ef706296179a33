"""Matching that is also held to the client's normalisation statistics, as far as the adversary can know them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from leakgauge.channels.dropout import draws_at_random, dropping_layers, without_dropout
from leakgauge.core import Observation, Reconstruction, Use, Victim
from leakgauge.errors import BadInput
from leakgauge.inversion.knowledge import StatisticsSource
from leakgauge.inversion.known_targets import structured, with_known_targets
from leakgauge.inversion.labels import class_labels
from leakgauge.inversion.matching import Matching
from leakgauge.inversion.statistics import NormStatistics


@dataclass(frozen=True)
class Guided:
    """``matching`` with ``weight`` · Σ_l ‖μ_l − μ*_l‖ + ‖σ²_l − σ²*_l‖ added to its objective; μ*, σ²* from ``statistics``.

    The replay runs in the client's mode, so in train mode gradients flow through the candidate's own batch statistics.
    Dropout masks of the client are unknown; the replay is without dropout, and a note says so.
    """

    matching: Matching
    statistics: StatisticsSource
    weight: float

    def __post_init__(self) -> None:
        if not self.weight >= 0:
            raise BadInput(f"the weight of the statistics must not be negative, got {self.weight}")

    def uses(self) -> frozenset[Use]:
        statistics: frozenset[Use] = frozenset({"statistics"})
        return self.matching.uses() | statistics

    def blind(self) -> Matching:
        """Nothing of the signal, and no statistics, which were found from it: the plain priors from the same start."""
        return self.matching.blind()

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        if structured(seen):
            victim, seen = with_known_targets(victim, seen)
            return replace(self(victim, seen, seed=seed), y=None)
        notes: tuple[str, ...] = ()
        dropping = dropping_layers(victim.model) if victim.mode == "train" else ()
        if dropping:
            victim = without_dropout(victim)
            notes += (
                f"replayed without dropout ({len(dropping)} layers drop by masks that the adversary does not know)",
            )
        if victim.mode == "train" and draws_at_random(victim):
            notes += (
                "the model draws at random in its own forward pass, which cannot be switched off: each replay has another draw than "
                "the client's",
            )
        attack = self.matching
        if self.weight:
            rng = torch.Generator().manual_seed(seed)
            labels = class_labels(attack.labels, victim, seen, rng=rng)
            known = self.statistics(victim, seen, labels, rng=rng)
            notes += (known.note,)
            if known.moments:
                attack = replace(attack, objective=attack.objective + self.weight * NormStatistics(known.moments))
        found = attack(victim, seen, seed=seed)
        return replace(found, made_by=repr(self), notes=(*found.notes, *notes))
