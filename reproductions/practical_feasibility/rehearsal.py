"""Many runs of one attack with different settings, for the price of one preparation.

Before its first step an attack proves its replay, finds the statistics, warms up and records the step as a CUDA graph: seconds on a
GPU, where the step itself takes milliseconds. A search over settings would pay that for every setting. Here the settings (weights of
the priors, learning rate) are numbers that live on the device, one for each row, and one recorded step serves all runs. Small networks
leave most of a GPU idle, so several settings are run side by side.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.channels.dropout import dropping_layers, without_dropout
from leakgauge.core import Observation, Victim
from leakgauge.engine import TF32, Exact, Observed
from leakgauge.errors import Inapplicable
from leakgauge.inversion import Adam, Descent, Guided, Matching, NormStatistics, TotalVariation
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.known_targets import has_structured_targets, with_known_targets
from leakgauge.inversion.labels import batch_size, class_labels
from leakgauge.inversion.search import Problem, Search
from leakgauge.inversion.solvers import Moving, Schedule
from leakgauge.inversion.terms import Candidate, Sum, Term

WARM, TIMED = 12, 20
"""Steps on a GPU before its pace is taken (the step is recorded after three), and over which it is taken."""


@dataclass(frozen=True, eq=False)
class Dialled(Term):
    """A term times numbers on the device, one for each row, which may change after the step was recorded."""

    term: Term
    weight: Tensor

    def __call__(self, at: Candidate, /) -> Tensor:
        return self.weight * self.term(at)

    def captures(self, victim: Victim) -> tuple[str, ...]:
        return self.term.captures(victim)


class Stretched:
    """An optimizer with its step stretched row by row, x ← x + rate_r · (inner(x) − x), with as much of one as a descent asks for.

    For Adam with a rate of 1 that is Adam with a rate for each row, as its steps are proportional to the rate.
    """

    def __init__(self, inner: torch.optim.Optimizer, variables: list[Tensor], rates: Tensor) -> None:
        self.inner, self.variables, self.rates = inner, variables, rates
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self) -> None:
        before = [v.detach().clone() for v in self.variables]
        self.inner.step()
        with torch.no_grad():
            for old, new in zip(before, self.variables, strict=True):
                new.copy_(torch.lerp(old, new, self.rates.view(-1, *[1] * (new.dim() - 1))))


class Rate:
    """Optimizer and schedule of the attack in one, with a learning rate for each row and a number of steps that can be set anew."""

    lr = 1.0

    def __init__(self, schedule: Schedule, rows: int, device: torch.device) -> None:
        self.schedule, self.steps, self.rates = schedule, 1, torch.ones(rows, device=device)
        self.optimizer: Stretched | None = None

    def make(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        self.optimizer = Stretched(Adam(self.lr).make(variables), variables, self.rates)
        return self.optimizer  # pyright: ignore[reportReturnType]  # all that a descent asks of an optimizer

    def __call__(self, progress: float, /) -> float:
        """A solver of one step asks at progress 0, 1, 2, …, which is the number of the step."""
        return self.schedule(progress / self.steps)

    def forget(self) -> None:
        """What Adam has gathered, in place: the recorded step reads these tensors."""
        assert self.optimizer is not None
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()


@dataclass(frozen=True, eq=False)
class Run:
    """Of every row the candidate (rows, B, …) with the lowest objective it saw, and that objective."""

    candidates: Tensor
    losses: Tensor

    @property
    def x(self) -> Tensor:
        """What the adversary would keep."""
        return self.candidates[int(self.losses.argmin())]


class Rehearsal:
    """``attack``, one that descends by Adam as ``feasibility`` and ``huang`` do, prepared for any of its settings.

    Each run gives what the attack with these settings would give. Its restarts are the rows that the settings of a run share, of
    each observation where there are several: those are attacked side by side, without statistics. Raises ``Inapplicable`` where the
    attack would. Where the candidates do not fit into memory together it runs out of memory, which is no refusal: others may have
    been using the GPU, and another time there may be room.
    """

    def __init__(self, attack: Guided, victim: Victim, seen: Sequence[Observation], *, seed: int = 0) -> None:
        if len(seen) == 1 and has_structured_targets(seen[0]):
            victim, only = with_known_targets(victim, seen[0])
            seen = [only]
        if victim.mode == "train" and dropping_layers(victim.model):
            victim = without_dropout(victim)
        matching, self.device = attack.matching, victim.device
        assert isinstance(matching.solver, Descent)
        self.observations, rows = len(seen), matching.restarts * len(seen)
        self.tv, self.weight = (torch.zeros(rows, device=self.device) for _ in range(2))
        self._parts = tuple(part for part in matching.objective.parts() if part[1].reads_signal)
        self._notes: tuple[str, ...] = ()
        self._statistics: Term | None = None
        if len(seen) == 1 and attack.weight:
            rng = torch.Generator().manual_seed(seed)
            labels = class_labels(matching.labels, victim, seen[0], rng=rng)
            known = attack.statistics(victim, seen[0], labels, rng=rng)
            self._notes = (known.note,)
            if known.moments:
                self._statistics = NormStatistics(known.moments)
        objective = self._objective(slice(None))
        self.problem, self.start = _problem(replace(matching, objective=objective), victim, seen, seed)
        self.x = self.start.clone().requires_grad_()
        self.rate = Rate(matching.solver.schedule, rows, self.device)
        with TF32().inside(self.device):
            self.search = Search(self.problem, self.x, None, together=True)
            fitting = self.search.fitting(self.x, None)
        if fitting < len(self.x):
            raise torch.OutOfMemoryError(f"{len(self.x)} candidates do not fit into memory together, only {fitting} do")
        solver = replace(matching.solver, optimizer=self.rate, schedule=self.rate, steps=1)
        given = Moving(x=self.x, losses=self.search.losses, space=victim.space, draws=self.problem.draws)
        self.move = solver.begin(given)

    def _objective(self, rows: slice) -> Term:
        """Of some rows: what compares gradients, and the priors with these rows' weights."""
        objective = Sum(self._parts) + Dialled(TotalVariation(), self.tv[rows])
        return objective if self._statistics is None else objective + Dialled(self._statistics, self.weight[rows])

    @property
    def notes(self) -> tuple[str, ...]:
        said = "TF32, losses judged in float32"
        return tuple(filter(None, [*self.search.notes, self.move.note, said, *self._notes]))

    def seconds_per_step(self) -> float:
        """Measured where the step is already recorded; a run forgets what this did."""
        warm, timed = (WARM, TIMED) if self.device.type == "cuda" else (1, 2)
        self._set([{"tv": 0.01, "statistics": 0.01, "lr": 0.1}], warm + timed)
        self._go(0, warm)
        began = self._now()
        self._go(warm, timed)
        return max(1e-5, (self._now() - began) / timed)

    def run(self, settings: Sequence[Mapping[str, float]], steps: int, *, exactly: bool = True) -> list[Run]:
        """One run for each of the settings, which name ``tv``, ``statistics`` and ``lr`` and get equally many rows, from the same starts.

        With several observations the rows of a run are ordered by observation.
        Unless ``exactly``, restarts are compared as they were judged on the way, which spares a pass for each of them. The losses
        of settings whose objective is never a number are infinite.
        """
        self._set(settings, steps)
        self._go(0, steps)
        with torch.no_grad(), TF32().inside(self.device):
            self.move.judge()  # the last step's image has not been judged yet
        found = self.search.best_x.clone()
        losses = (self._judged(found) if exactly else self.search.best.cpu()).nan_to_num(nan=torch.inf)
        sets = [part.unflatten(0, (self.observations, len(settings), -1)).unbind(1) for part in (found, losses)]
        return [Run(*(part.flatten(0, 1) for part in of)) for of in zip(*sets, strict=True)]

    def _set(self, settings: Sequence[Mapping[str, float]], steps: int) -> None:
        """The settings of the next run, and everything else as it was before the first."""
        restarts = len(self.x) // self.observations
        each, rest = divmod(restarts, len(settings))
        assert not rest, f"{restarts} rows cannot be shared by {len(settings)} settings"
        for name, numbers in (("tv", self.tv), ("statistics", self.weight), ("lr", self.rate.rates)):
            values = torch.tensor([float(of[name]) for of in settings])
            numbers.copy_(values.repeat_interleave(each).repeat(self.observations))
        self.rate.steps = steps
        self.rate.forget()
        with torch.no_grad():
            starts = self.start.unflatten(0, (self.observations, restarts))[:, :each]
            self.x.copy_(torch.cat([starts] * len(settings), 1).flatten(0, 1))
            self.search.best.fill_(torch.inf)
            self.search.best_x.copy_(self.x)

    def _go(self, first: int, count: int) -> None:
        with TF32().inside(self.device):
            for number in range(first, first + count):
                self.move(number)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _judged(self, x: Tensor) -> Tensor:
        """In float32 and row by row, so that a coarse replay does not choose by its own rounding."""
        losses: list[Tensor] = []
        with torch.no_grad(), Exact().inside(self.device):
            for row in (slice(r, r + 1) for r in range(len(x))):
                alone = replace(self.problem.take(row), objective=self._objective(row))
                losses.append(Search(alone, x[row], None, together=False).objective(x[row], None, slice(None)))
        return torch.cat(losses).cpu()


def _problem(attack: Matching, victim: Victim, seen: Sequence[Observation], seed: int) -> tuple[Problem, Tensor]:
    """What stays the same while candidates move, and where they start: the restarts of each observation one after another."""
    starts: list[Tensor] = []
    labels: list[Tensor] = []
    for one in seen:
        rng = torch.Generator().manual_seed(seed)  # anew, so that a result does not depend on its company
        starts.append(attack.start(victim.space, one, attack.restarts, batch_size(one), rng=rng))
        known = class_labels(attack.labels, victim, one, rng=rng)
        if known is None:
            raise Inapplicable("labels could be neither read nor were they given")
        labels += [known.to(victim.device)] * attack.restarts
    observed = [Observed.check(one.signal, victim) for one in seen]
    several = (
        Observed.stack([one for one in observed for _ in range(attack.restarts)]) if len(seen) > 1 else observed[0]
    )
    draws = Draws.of(attack.restarts, observations=len(seen), seed=seed)
    problem = Problem(
        attack.objective, victim, seen[0].channel, several, torch.stack(labels), precision=TF32(), draws=draws
    )
    return problem, torch.cat(starts).to(victim.device, victim.dtype)
