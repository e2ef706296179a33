"""Matching that also uses the client's normalisation statistics, as far as the adversary can know them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.channels.dropout import draws_at_random, dropping_layers, without_dropout
from leakgauge.core import Observation, Reconstruction, Use, Victim
from leakgauge.inversion.added import Added
from leakgauge.inversion.knowledge import StatisticsSource
from leakgauge.inversion.labels import class_labels
from leakgauge.inversion.matching import Matching
from leakgauge.inversion.statistics import NormStatistics


@dataclass(frozen=True)
class Guided(Added):
    """``matching`` with ``weight`` · Σ_l ‖μ_l − μ*_l‖ + ‖σ²_l − σ²*_l‖ added to its objective; μ*, σ²* from ``statistics``.

    The replay runs in the client's mode, so in train mode gradients flow through the candidate's own batch statistics.
    The client's dropout masks are unknown, so the replay runs without dropout and a note says so.
    """

    matching: Matching
    statistics: StatisticsSource
    weight: float

    ADDED: ClassVar[str] = "the statistics"
    NEEDS: ClassVar[frozenset[Use]] = frozenset({"statistics"})

    def _attack(self, victim: Victim, seen: Observation, seed: int) -> Reconstruction:
        notes: tuple[str, ...] = ()
        dropping = dropping_layers(victim.model) if victim.mode == "train" else ()
        if dropping:
            victim = without_dropout(victim)
            notes += (f"replayed without dropout (the masks of {len(dropping)} layers are unknown to the adversary)",)
        if victim.mode == "train" and draws_at_random(victim):
            notes += (
                "the model draws random numbers in its own forward pass, which cannot be switched off: each replay draws other "
                "numbers than the client did",
            )
        attack, note = self._with_statistics(victim, seen, seed)
        notes += (note,) if note else ()
        found = attack(victim, seen, seed=seed)
        return replace(found, made_by=repr(self), notes=(*found.notes, *notes))

    def objective_at(self, victim: Victim, seen: Observation, x: Tensor, y: Tensor, /, *, seed: int = 0) -> float:
        """The objective of one candidate, with the statistics that the adversary assumes."""
        steady = without_dropout(victim) if victim.mode == "train" else victim
        return self._with_statistics(steady, seen, seed)[0].objective_at(steady, seen, x, y, seed=seed)

    def _with_statistics(self, victim: Victim, seen: Observation, seed: int) -> tuple[Matching, str]:
        """The plain attack with the statistics' part of the objective, and where these came from."""
        attack = self.matching
        if not self.weight:
            return attack, ""
        rng = torch.Generator().manual_seed(seed)
        labels = class_labels(attack.labels, victim, seen, rng=rng)
        known = self.statistics(victim, seen, labels, rng=rng)
        if known.moments:
            attack = replace(attack, objective=attack.objective + self.weight * NormStatistics(known.moments))
        return attack, known.note
