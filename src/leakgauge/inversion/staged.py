"""Searches one after another, each from where the one before ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.core import Encodes, Observation, Reconstruction, Space, Trace, Use, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput
from leakgauge.inversion.encoded import through_encodings
from leakgauge.inversion.matching import Matching, too_narrow
from leakgauge.inversion.progress import as_part
from leakgauge.inversion.starts import Given


@dataclass(frozen=True)
class Staged:
    """Every restart of a stage begins at the image that it found in the stage before; the last stage judges.

    Stages must have the same number of restarts. Labels are read by each stage.
    """

    stages: tuple[Matching, ...]
    name: str = "staged"

    def __post_init__(self) -> None:
        if not self.stages or len({stage.restarts for stage in self.stages}) > 1:
            raise BadInput(
                f"Staged needs at least one search, all with the same number of restarts, got {len(self.stages)} "
                f"with {sorted({stage.restarts for stage in self.stages})} restarts"
            )

    @property
    def steps(self) -> int:
        return sum(stage.solver.steps for stage in self.stages)

    def uses(self) -> frozenset[Use]:
        return self.stages[0].uses()

    def effort(self) -> tuple[str, int]:
        return self.name, self.steps

    def blind(self) -> Staged:
        """The priors of every stage alone, from the same starts (the null run)."""
        return Staged(tuple(stage.blind() for stage in self.stages), name=f"{self.name}, blind")

    def objective_at(self, victim: Victim, seen: Observation, x: Tensor, y: Tensor, /, *, seed: int = 0) -> float:
        """The objective of the last stage at one candidate."""
        return self.stages[-1].objective_at(victim, seen, x, y, seed=seed)

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        return self.many(victim, [seen], seed=seed)[0]

    def many(self, victim: Victim, seen: Sequence[Observation], /, *, seed: int = 0) -> list[Reconstruction]:
        """Attacks several observations of one channel in one batch; each result is the same as when attacked alone."""
        if len(seen) > 1 and too_narrow(victim):  # each is converted to another observation
            return [one for alone in seen for one in self.many(victim, [alone], seed=seed)]
        if any(isinstance(one.channel, Encodes) for one in seen):  # all stages search encodings, which are decoded once
            bare = replace(self, stages=tuple(stage.without_priors() for stage in self.stages))
            made = (through_encodings(bare, victim, one, seed=seed) for one in seen)
            return [replace(one, made_by=repr(self)) for one in made]
        found: list[Reconstruction] = []
        for number, stage in enumerate(self.stages):
            done = sum(one.solver.steps for one in self.stages[:number])
            if found:
                stage = replace(stage, start=_Ends(tuple(seen), tuple(one.candidates.detach() for one in found)))
            with as_part(done, stage.solver.steps, self.steps):
                further = stage.many(victim, seen, seed=seed)
            found = [_after(old, new, done) for old, new in zip(found, further, strict=True)] if found else further
        return [replace(one, made_by=repr(self)) for one in found]


def _after(old: Reconstruction, new: Reconstruction, done: int) -> Reconstruction:
    return replace(new, seconds=old.seconds + new.seconds, trace=_joined(old.trace, new.trace, done))


@dataclass(frozen=True, eq=False)
class _Ends:
    """Begins the search of each observation at the candidates that were found for it; a single one may be converted on the way."""

    seen: tuple[Observation, ...]
    found: tuple[Tensor, ...]

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        number = 0 if len(self.seen) == 1 else next(i for i, one in enumerate(self.seen) if one is seen)
        return Given(self.found[number])(space, seen, rows, size, rng=rng)


def _joined(before: Trace, after: Trace, done: int) -> Trace:
    """One course. What ends the search of ``done`` steps before begins the next one, so it is kept once."""
    kept = [i for i, step in enumerate(before.steps) if step < done]
    shown = [i for i, step in enumerate(before.snapshot_steps) if step < done]
    return Trace(
        (*(before.steps[i] for i in kept), *(done + step for step in after.steps)),
        torch.cat((before.losses[kept], after.losses)),
        (*(before.snapshot_steps[i] for i in shown), *(done + step for step in after.snapshot_steps)),
        torch.cat((before.snapshots[shown], after.snapshots)),
    )
