"""The one optimisation loop of every attack that matches a replayed signal with the observed one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from leakgauge.channels.twice import explaining_once_only, refuse_once_only
from leakgauge.core import Channel, Observation, Reconstruction, Trace, Victim, private_randomness
from leakgauge.engine import Observed, Reference
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import progress
from leakgauge.inversion.labels import Joint, LabelRule, batch_size, classes, inferred
from leakgauge.inversion.solvers import Descent, Solver
from leakgauge.inversion.starts import FromSpace, Start
from leakgauge.inversion.terms import Candidate, Sum, Term

POINTS_IN_TRACE = 200
SNAPSHOTS = 6


@dataclass(frozen=True)
class Matching:
    """x̂ = argmin objective(x): a distance between channel(victim, x, ŷ) and the observation, plus weighted priors.

    Restarts are independent; the adversary keeps the one with the lowest objective. Within a restart the image that
    produced the lowest objective is kept, not the one a step later.
    """

    objective: Term
    labels: LabelRule = field(default_factory=inferred)
    start: Start = field(default_factory=FromSpace)
    solver: Solver = field(default_factory=Descent)
    restarts: int = 1
    name: str = "matching"

    def __post_init__(self) -> None:
        if not isinstance(self.restarts, int) or self.restarts < 1:
            raise BadInput(f"an attack needs at least 1 restart, a whole number, got {self.restarts!r}")

    def blind(self) -> Matching:
        """The same attack without the signal: its priors alone, from the same starts (the null run).

        Labels are read off the signal, so they are guessed as well, unless they were revealed.
        """
        objective = Sum(self.objective.parts()).without_signal()
        return replace(self, objective=objective, labels=Joint(), name=f"{self.name}, blind")

    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        rng = torch.Generator().manual_seed(seed)
        size = batch_size(seen)
        observed = Observed.checked(seen.signal, victim)
        x = self.start(victim.space, seen, self.restarts, size, rng=rng).to(victim.device).requires_grad_()
        labels = self._labels(victim, seen, rng)  # after the start, which must not depend on what was observed
        logits = None
        if labels is None:
            logits = torch.randn(self.restarts, size, classes(victim), generator=rng)
            logits = logits.to(victim.device).requires_grad_()
        search = _Search(self.objective, victim, seen.channel, observed, labels, x, logits)
        with private_randomness(seed, victim.device):
            trace = self._loop(search, x, logits, victim)
        return search.result(made_by=repr(self), seconds=time.perf_counter() - began, trace=trace)

    def _labels(self, victim: Victim, seen: Observation, rng: torch.Generator) -> Tensor | None:
        known = self.labels(victim, seen, rng=rng) if seen.labels is None else seen.labels
        if known is not None and not isinstance(known, Tensor):
            raise Inapplicable("matching handles class labels; structured targets need an attack of their own")
        return None if known is None else known.to(victim.device)

    def _loop(self, search: _Search, x: Tensor, logits: Tensor | None, victim: Victim) -> Trace:
        steps = self.solver.steps
        move = self.solver.begin(x, logits, search.losses, victim.space)
        every, frames = max(1, steps // POINTS_IN_TRACE), _evenly(steps, SNAPSHOTS)
        at: list[int] = []
        curve: list[Tensor] = []
        snapshots: list[Tensor] = []
        for number in range(steps):
            if number in frames:
                snapshots.append(x.detach().clone())
            if number == 0:
                with explaining_once_only():
                    move(number)
            else:
                move(number)
            if number % every == 0:
                at.append(number)
                curve.append(search.latest.clone())
            progress.report(number + 1, steps)
        with torch.no_grad():  # the last step's image has not been judged yet
            search.losses(x.detach(), None if logits is None else logits.detach(), slice(None))
        at.append(steps)
        curve.append(search.latest.clone())
        snapshots.append(x.detach().clone())
        return Trace(tuple(at), torch.stack(curve).cpu(), (*frames, steps), torch.stack(snapshots, 1))


def _evenly(steps: int, count: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(round(i * steps / count) for i in range(count) if round(i * steps / count) < steps))


class _Search:
    """Judges candidates and keeps, per restart and on the device, the best one together with its loss."""

    def __init__(
        self,
        objective: Term,
        victim: Victim,
        channel: Channel,
        observed: Observed,
        labels: Tensor | None,
        x: Tensor,
        logits: Tensor | None,
    ) -> None:
        self.objective, self.victim, self.labels = objective, victim, labels
        capture = objective.captures(victim)
        reads = any(w and term.reads_signal for w, term in objective.parts())
        if reads or capture:
            refuse_once_only(victim.model)
        self.replay = Reference(victim, channel, observed, capture) if reads or capture else None
        self.best = torch.full((len(x),), torch.inf, device=x.device)
        self.latest = self.best.clone()
        self.best_x = x.detach().clone()
        self.best_logits = None if logits is None else logits.detach().clone()

    def losses(self, x: Tensor, logits: Tensor | None, rows: slice) -> Tensor:
        replayed = None if self.replay is None else self.replay(x, self._targets(x, logits))
        losses = self.objective(Candidate(x, self.victim, replayed))
        with torch.no_grad():
            better = losses < self.best[rows]  # False for NaN
            self.latest[rows] = losses
            self.best[rows] = torch.where(better, losses, self.best[rows])
            self.best_x[rows] = torch.where(_column(better, x), x, self.best_x[rows])
            if logits is not None and self.best_logits is not None:
                self.best_logits[rows] = torch.where(_column(better, logits), logits, self.best_logits[rows])
        return losses

    def _targets(self, x: Tensor, logits: Tensor | None) -> Tensor:
        if logits is not None:
            return logits.softmax(-1)
        assert self.labels is not None
        return self.labels.expand(len(x), *self.labels.shape)

    def result(self, **about: Any) -> Reconstruction:
        losses = self.best.detach().cpu()
        if not torch.isfinite(losses).any():
            raise BadInput("the objective was never finite; the model gives NaN or Inf on the adversary's candidates")
        chosen = int(losses.argmin())
        labels = self.labels if self.best_logits is None else self.best_logits[chosen].argmax(-1)
        trace: Trace = about.pop("trace")
        return Reconstruction(
            x=self.best_x[chosen].detach(),
            y=labels,
            loss=float(losses[chosen]),
            candidates=self.best_x.detach(),
            losses=losses,
            trace=replace(trace, snapshots=trace.snapshots[chosen].cpu()),
            notes=("replay: reference",) if self.replay is not None else ("replay: none (blind run)",),
            **about,
        )


def _column(flags: Tensor, like: Tensor) -> Tensor:
    return flags.view(-1, *[1] * (like.dim() - 1))
