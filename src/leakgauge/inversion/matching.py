"""The one optimisation loop of every attack that matches a replayed signal with the observed one."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.channels.dropout import dropping_layers
from leakgauge.channels.facts import lacks_clients, smooth
from leakgauge.channels.twice import explaining_once_only, twins_taken
from leakgauge.core import (
    Encodes,
    HidesDraws,
    Observation,
    PerSample,
    Reconstruction,
    Signal,
    Tokens,
    Trace,
    Use,
    Victim,
)
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.randomness import private_randomness
from leakgauge.engine import Exact, Observed, Precision
from leakgauge.engine.fused import precision_name, rounds
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion import progress
from leakgauge.inversion.defended import useful
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.encoded import through_encodings
from leakgauge.inversion.free_targets import free_targets, of_no_classes
from leakgauge.inversion.known_targets import has_structured_targets, with_known_targets
from leakgauge.inversion.labels import (
    CloudPrediction,
    Joint,
    LabelRule,
    batch_size,
    class_count,
    infer_labels,
    read_class_labels,
)
from leakgauge.inversion.output_gradient import (
    OutputGradient,
    along_output,
    of_separated,
    order_at_head,
    output_gradients,
    read_targets,
)
from leakgauge.inversion.sampling import Annealing, Sampling
from leakgauge.inversion.search import Problem, Search, require_finite
from leakgauge.inversion.solvers import Descent, Moving, Solver
from leakgauge.inversion.starts import FromSpace, Given, NearTruth, Revealed, Start
from leakgauge.inversion.terms import Sum, Term, couples_restarts


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


NOTE = "searched in float32: in the victim's float16 the squares of gradients become 0 and no step can be taken"


ALONG = "replayed along the gradient at the output, read from the head"


def too_narrow(victim: Victim) -> bool:
    """Whether the victim's number type cannot hold the squares of small gradients; bfloat16 has the range of float32."""
    return victim.dtype == torch.float16


def widen(victim: Victim, seen: Sequence[Observation]) -> tuple[Victim, list[Observation]]:
    """A float16 victim with float32 weights, and the observations converted: an adversary may compute in any number type."""
    wide = replace(victim, model=copy.deepcopy(victim.model).float())
    return wide, [
        replace(
            one,
            signal=_signal(one.signal),
            buffers=None if one.buffers is None else _signal(one.buffers),
            near=None if one.near is None else _tensor(one.near),
            auxiliary=None if one.auxiliary is None else _tensor(one.auxiliary),
        )
        for one in seen
    ]


def _signal(signal: Signal) -> Signal:
    return {name: _tensor(value) for name, value in signal.items()}


def _tensor(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float16 else value


POINTS_IN_TRACE = 200
MOST_RESTARTS = 10_000
MOST_VALUES = 1 << 28
"""Of all candidates together; the network's activations take a multiple of that."""
SNAPSHOTS = 6


@dataclass(frozen=True)
class Matching:
    """x̂ = argmin objective(x): a distance between channel(victim, x, ŷ) and the observation, plus weighted priors.

    Restarts are independent unless a term couples them (:class:`GroupConsistency`); then all restarts of an observation run
    together. The adversary keeps the restart with the lowest objective, and within a restart the image that produced the lowest
    objective, not the one a step later. ``precision`` and ``halving`` gain speed with a less exact replay and by stopping
    hopeless restarts; both are off by default. ``frames`` are the steps before which the trace keeps the best candidate so far
    (besides the end); the default is six, evenly spaced. With ``along``, where the gradient at the output can be read (one sample or a
    small batch, and a shared head), the replay follows it in place of the loss (:class:`OutputGradient`).
    """

    objective: Term
    labels: LabelRule = field(default_factory=infer_labels)
    start: Start = field(default_factory=FromSpace)
    solver: Solver = field(default_factory=Descent)
    restarts: int = 1
    name: str = "matching"
    precision: Precision = field(default_factory=Exact)
    halving: Halving | None = None
    frames: tuple[int, ...] = ()
    along: bool = False

    def __post_init__(self) -> None:
        if list(self.frames) != sorted(set(self.frames)) or any(not 0 <= at < self.solver.steps for at in self.frames):
            raise BadInput(
                f"frames must be distinct steps from 0 to {self.solver.steps - 1} in ascending order, got {self.frames}"
            )
        if not isinstance(self.restarts, int) or not 1 <= self.restarts <= MOST_RESTARTS:
            raise BadInput(
                f"an attack needs an integer number of restarts of at least 1 and at most {MOST_RESTARTS}, got {self.restarts!r}"
            )
        if self.halving is not None and not self.solver.together:
            raise BadInput("successive halving needs a solver that moves all restarts together, such as Descent")
        if couples_restarts(self.objective) and not self.solver.together:
            raise BadInput("a term that couples restarts needs a solver that moves them together, such as Descent")
        if couples_restarts(self.objective) and self.halving is not None:
            raise BadInput("successive halving would change the group that a term couples; use one of the two")

    @property
    def _at_least(self) -> int:
        """How many rows must run together."""
        return self.restarts if couples_restarts(self.objective) else 1

    def uses(self) -> frozenset[Use]:
        """What its start and its rule for labels use."""
        copy: set[Use] = {"noisy_copy"} if isinstance(self.start, NearTruth | Revealed) else set()
        features: set[Use] = {"features"} if isinstance(self.labels, CloudPrediction) else set()
        return frozenset(copy | features)

    def effort(self) -> tuple[str, int]:
        return self.name, self.solver.steps

    def blind(self) -> Matching:
        """The same attack without the signal: its priors alone, from the same starts (the null run).

        Labels come from the signal, so they are guessed too, unless they were revealed.
        """
        objective = Sum(self.objective.parts()).without_signal()
        return replace(self, along=False, objective=objective, labels=Joint(), name=f"{self.name}, blind")

    def without_priors(self) -> Matching:
        """The same search without what it assumes of images, for encodings, which are none."""
        if isinstance(self.solver, Sampling | Annealing):
            raise Inapplicable("the client sends encoded images, of which a diffusion prior of images knows nothing")
        return replace(self, objective=Sum(tuple(p for p in self.objective.parts() if p[1].reads_signal)))

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        return self.many(victim, [seen], seed=seed)[0]

    def many(self, victim: Victim, seen: Sequence[Observation], /, *, seed: int = 0) -> list[Reconstruction]:
        """Attacks several observations of one channel in one batch; each result is the same as when attacked alone."""
        began = time.perf_counter()
        if any(has_structured_targets(one) for one in seen):
            if len(seen) > 1:
                raise BadInput("observations with structured targets cannot share a batch; attack them one by one")
            victim, one = with_known_targets(victim, seen[0])
            return [replace(found, y=None) for found in self.many(victim, [one], seed=seed)]
        if self.halving is not None and len(seen) > 1:
            raise BadInput("successive halving compares the restarts of one observation; attack several one by one")
        if too_narrow(victim):
            return [_add_notes(one) for one in self.many(*widen(victim, seen), seed=seed)]
        if any(isinstance(one.channel, Encodes) for one in seen):
            return [through_encodings(self.without_priors(), victim, one, seed=seed) for one in seen]
        followed = along_output(victim, seen) if self.along else None
        if followed is not None:
            attack = replace(self, along=False, labels=OutputGradient(victim.loss))
            made = [
                _add_notes(one, ALONG + of_separated(victim, own))
                for one, own in zip(attack.many(followed, seen, seed=seed), seen, strict=True)
            ]
            if of_no_classes(victim) is None:
                return made
            return [replace(one, y=read_targets(victim, own, one.x)) for one, own in zip(made, seen, strict=True)]
        rows = _rows(self, victim, seen, seed)
        found: list[_Found] = []
        done, chunk = 0, len(rows.x)
        with private_randomness(seed, victim.device), self.precision.inside(victim.device):
            while done < len(rows.x):
                try:
                    found.append(self._search_rows(rows.take(slice(done, done + chunk)), victim, may_shrink=done == 0))
                    chunk = len(found[-1].losses)
                    done += chunk
                except torch.OutOfMemoryError as full:  # finished rows are kept; the rest continues in smaller chunks
                    if chunk == 1:
                        raise
                    chunk = self._whole_groups(min(chunk, len(rows.x) - done) // 2, full)
                    torch.cuda.empty_cache()
        every = _join(found)
        if rounds(self.precision):
            every = _judge_exactly(every, rows, at_once=self._at_least)
        seconds = (time.perf_counter() - began) / len(seen)
        said = (*_of_dropout(victim), *_of_smoothing(seen[0]), *_of_absent(seen[0]), *_of_twins(victim))
        every = replace(every, notes=(*every.notes, *said))
        return [self._result(every, rows, i, seconds) for i in range(len(seen))]

    def objective_at(self, victim: Victim, seen: Observation, x: Tensor, y: Tensor, /, *, seed: int = 0) -> float:
        """The objective of one candidate ``x`` with the labels ``y``, replayed as in the search and computed in float32."""
        if too_narrow(victim):
            victim, (seen,) = widen(victim, [seen])
        followed = along_output(victim, [seen]) if self.along else None
        if followed is not None:
            along, d = replace(self, along=False), output_gradients(victim, seen)
            orders = (slice(None), order_at_head(victim, seen, x)) if len(x) > 1 else (slice(None),)
            return min(along.objective_at(followed, seen, x[order], d, seed=seed) for order in orders)
        single = replace(self, restarts=1, start=Given(_tensor(x)))
        rows = _rows(single, victim, [replace(seen, labels=y)], seed)
        with torch.no_grad(), private_randomness(seed, victim.device):
            search = Search(rows.problem, rows.x, None, together=False)
            return float(search.objective(rows.x, None, slice(None)))

    def _whole_groups(self, fitting: int, why: Exception | None = None) -> int:
        """At most ``fitting`` rows, but at least one, without separating restarts that a term couples."""
        if fitting < self._at_least and self._at_least > 1:
            raise Inapplicable(
                f"the objective couples {self.restarts} restarts, which do not fit into memory together; use fewer restarts"
            ) from why
        return max(1, fitting // self._at_least * self._at_least)

    def _search_rows(self, rows: _Rows, victim: Victim, *, may_shrink: bool) -> _Found:
        """Search these rows from start to end; if they do not fit into memory, only as many of the first as do."""
        x = rows.x.clone().requires_grad_()
        logits = None if rows.logits is None else rows.logits.clone().requires_grad_()
        search = Search(rows.problem, x, logits, together=self.solver.together)
        fitting = search.fitting(x, logits) if may_shrink else len(x)
        if fitting < len(x):
            return self._search_rows(rows.take(slice(0, self._whole_groups(fitting))), victim, may_shrink=False)
        trace = self._loop(search, x, logits, victim)
        return _Found(search.best, search.best_x, search.best_logits, trace, search.notes)

    def _loop(self, search: Search, x: Tensor, logits: Tensor | None, victim: Victim) -> Trace:
        steps = self.solver.steps
        drops = {} if self.halving is None else self.halving.drops(len(x), steps)
        problem = search.problem
        move = self.solver.begin(
            Moving(
                x=x,
                losses=search.losses,
                space=victim.space,
                draws=problem.draws,
                logits=logits,
                labels=problem.classes(),
            )
        )
        every, frames = max(1, steps // POINTS_IN_TRACE), self.frames or _evenly(steps, SNAPSHOTS)
        at: list[int] = []
        curve: list[Tensor] = []
        snapshots: list[Tensor] = []
        for number in range(steps):
            if number in frames:
                snapshots.append(search.best_x.clone())
            if number in drops:
                move.keep(drops[number], search.best)
            search.begin(number, steps)
            with explaining_once_only():  # in every step: a branch that a model takes later may use another function
                move(number)
            if number % every == 0:
                at.append(number)
                curve.append(search.latest.clone())
            progress.report(number + 1, steps)
        with torch.no_grad():
            move.judge()  # the image of the last step has not been judged yet
        search.notes += (move.note,) if move.note else ()
        at.append(steps)
        curve.append(search.latest.clone())
        snapshots.append(search.best_x.clone())
        return Trace(tuple(at), torch.stack(curve).cpu(), (*frames, steps), torch.stack(snapshots, 1).cpu())

    def _result(self, found: _Found, rows: _Rows, which: int, seconds: float) -> Reconstruction:
        own = slice(which * self.restarts, (which + 1) * self.restarts)
        losses = found.losses[own].cpu()
        require_finite(losses)
        chosen = own.start + int(losses.argmin())
        if rows.problem.labels is None:
            assert found.logits is not None
            assert rows.problem.free is not None
            labels = rows.problem.free.found(rows.problem.target_logits(found.logits[chosen]))
        else:
            labels = rows.problem.found_labels()[chosen]
        trace = replace(found.trace, losses=found.trace.losses[:, own], snapshots=found.trace.snapshots[chosen])
        return Reconstruction(
            x=found.x[chosen],
            y=labels,
            loss=float(found.losses[chosen]),
            candidates=found.x[own],
            losses=losses,
            made_by=repr(self),
            seconds=seconds,
            trace=trace,
            notes=found.notes,
            label_accuracy=rows.label_accuracy[which],
        )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Every restart of every observation is one row: its start and what it is compared with."""

    problem: Problem
    x: Tensor
    logits: Tensor | None
    label_accuracy: tuple[float | None, ...]  # of each observation

    def take(self, rows: slice) -> _Rows:
        logits = None if self.logits is None else self.logits[rows]
        return _Rows(self.problem.take(rows), self.x[rows], logits, self.label_accuracy)


def _rows(attack: Matching, victim: Victim, seen: Sequence[Observation], seed: int) -> _Rows:
    if not seen:
        raise BadInput("there is no observation to attack")
    if isinstance(victim.space, Tokens):
        raise Inapplicable("matching follows a gradient, but token ids have none; use an attack on text")
    if any(
        (one.channel, one.defenses, batch_size(one)) != (seen[0].channel, seen[0].defenses, batch_size(seen[0]))
        for one in seen
    ):
        raise BadInput(
            "observations attacked together must have the same channel, defenses and batch size; attack them one by one"
        )
    values = attack.restarts * len(seen) * batch_size(seen[0]) * math.prod(victim.space.shape)
    if values > MOST_VALUES:
        raise BadInput(
            f"{attack.restarts} restarts of {len(seen) * batch_size(seen[0])} images take {values * 4 / 2**30:.0f} GiB for the candidates "
            "alone; use fewer restarts"
        )
    channel = seen[0].channel
    unknowns = channel.unknowns if isinstance(channel, HidesDraws) else 0
    like = channel.like(victim, batch_size(seen[0])) if isinstance(channel, PerSample) else None
    observed = [Observed.check(one.signal, victim, like) for one in seen]
    starts: list[Tensor] = []
    labels: list[Tensor | None] = []
    accuracy: list[float | None] = []
    logits: list[Tensor] = []
    free, other = None, of_no_classes(victim)
    for one in seen:
        # seeded for each observation, so its result does not depend on the others
        rng = torch.Generator().manual_seed(seed)
        size = batch_size(one)
        starts.append(attack.start(victim.space, one, attack.restarts, size, rng=rng))
        # after the start, which must not depend on the observation
        classless = other is not None and one.labels is None
        known = read_class_labels(Joint() if classless else attack.labels, victim, one, rng=rng)
        labels += [known.labels] * attack.restarts
        accuracy.append(known.accuracy)
        searched = (other or free_targets(victim)) if known.labels is None else None
        free = free or searched
        shape = () if searched is None else searched.shape
        shape = (sum(shape) + unknowns,) if unknowns else shape  # draws are hidden beside classes only
        if searched is not None or unknowns:
            logits.append(torch.randn(attack.restarts, size, *shape, generator=rng))
    if logits and (len(logits) < len(seen) or len({one.shape for one in logits}) > 1):
        raise BadInput("labels can only be read for some of these observations; attack them one by one")
    device = victim.device
    known_labels = [label.to(device) for label in labels if label is not None]
    if len(observed) == 1:
        target = observed[0]
    else:
        target = Observed.stack([one for one in observed for _ in range(attack.restarts)])
    problem = Problem(
        objective=attack.objective,
        victim=victim,
        channel=smooth(channel),
        observed=target,
        labels=torch.stack(known_labels) if known_labels else None,
        precision=attack.precision,
        draws=Draws.of(attack.restarts, observations=len(seen), seed=seed),
        defenses=useful(seen[0].defenses),
        free=free,
        unknowns=unknowns,
        scores=class_count(victim) if unknowns else 0,
    )
    return _Rows(
        problem,
        torch.cat(starts).to(device, victim.dtype),
        torch.cat(logits).to(device, victim.dtype) if logits else None,
        tuple(accuracy),
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """The best of every row, as tensors with one entry per row."""

    losses: Tensor
    x: Tensor
    logits: Tensor | None
    trace: Trace
    notes: tuple[str, ...]


def _join(pieces: Sequence[_Found]) -> _Found:
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    trace = replace(
        first.trace,
        losses=torch.cat([p.trace.losses for p in pieces], 1),
        snapshots=torch.cat([p.trace.snapshots for p in pieces]),
    )
    logits = None if first.logits is None else torch.cat([p.logits for p in pieces if p.logits is not None])
    chunks = f"in {len(pieces)} chunks of at most {max(len(p.losses) for p in pieces)} rows"
    return _Found(
        torch.cat([p.losses for p in pieces]), torch.cat([p.x for p in pieces]), logits, trace, (*first.notes, chunks)
    )


def _judge_exactly(found: _Found, rows: _Rows, *, at_once: int) -> _Found:
    """Recompute the losses of the kept candidates in float32, so a coarse replay does not choose by its own rounding errors.

    Rows are judged ``at_once`` at a time: one, or those that a term couples.
    """
    exact = Exact()
    with torch.no_grad(), exact.inside(found.x.device):
        search = Search(rows.problem, found.x, found.logits, together=False)
        pieces = [slice(r, r + at_once) for r in range(0, len(found.x), at_once)]
        logits = [None if found.logits is None else found.logits[rows] for rows in pieces]
        judged = [search.objective(found.x[rows], y, rows) for rows, y in zip(pieces, logits, strict=True)]
    losses = torch.cat(judged)
    change = float((losses - found.losses).abs().max())
    name = precision_name(rows.problem.precision)
    exactly = f"{name}, losses judged in float32 (off by at most {change:.1e})"
    return replace(found, losses=losses, notes=(*found.notes, exactly))


def _evenly(steps: int, count: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(round(i * steps / count) for i in range(count) if round(i * steps / count) < steps))


def _of_dropout(victim: Victim) -> list[str]:
    dropping = dropping_layers(victim.model) if victim.mode == "train" else ()
    if not dropping:
        return []
    return [f"replayed with its own dropout masks, because the client's are unknown ({len(dropping)} layers)"]


def _of_smoothing(seen: Observation) -> list[str]:
    if smooth(seen.channel) == seen.channel:
        return []
    return ["replayed with smoothed steps, because Adam's own have almost no derivative"]


def _of_absent(seen: Observation) -> list[str]:
    if not lacks_clients(seen.channel):
        return []
    return ["the samples of clients that dropped out were not sent: what is shown for them is not read from the update"]


def _of_twins(victim: Victim) -> list[str]:
    return [f"computed {taken}, which can be differentiated twice" for taken in twins_taken(victim.model)]


def _add_notes(found: Reconstruction, note: str = NOTE) -> Reconstruction:
    return replace(found, notes=(*found.notes, note))
