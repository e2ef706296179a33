"""Searches one after another, each from where the one before ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.core import Observation, Reconstruction, Trace, Use, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput
from leakgauge.inversion.matching import Matching
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
        found: list[Reconstruction] = []
        for stage in self.stages:
            if found:
                stage = replace(stage, start=Given(found[-1].candidates.detach()))
            done = sum(one.solver.steps for one in self.stages[: len(found)])
            with as_part(done, stage.solver.steps, self.steps):
                found.append(stage(victim, seen, seed=seed))
        last = found[-1]
        return replace(
            last,
            made_by=repr(self),
            seconds=sum(one.seconds for one in found),
            trace=_joined([one.trace for one in found], [stage.solver.steps for stage in self.stages]),
        )


def _joined(traces: Sequence[Trace], lengths: Sequence[int]) -> Trace:
    """One course. What ends a stage begins the next one, so it is kept once."""
    steps: list[int] = []
    losses: list[Tensor] = []
    frames: list[int] = []
    pictures: list[Tensor] = []
    before = 0
    for trace, length in zip(traces, lengths, strict=True):
        final = trace is traces[-1]
        kept = [i for i, step in enumerate(trace.steps) if final or step < length]
        shown = [i for i, step in enumerate(trace.snapshot_steps) if final or step < length]
        steps += [before + trace.steps[i] for i in kept]
        frames += [before + trace.snapshot_steps[i] for i in shown]
        losses.append(trace.losses[kept])
        pictures.append(trace.snapshots[shown])
        before += length
    return Trace(tuple(steps), torch.cat(losses), tuple(frames), torch.cat(pictures))
