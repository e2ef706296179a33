"""What an adversary who knows the defense compares a replayed signal with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.channels.rows import as_rows, column, row_norms
from leakgauge.core import AddsNoise, Defense, Explains, Masks, Signal, Weighs
from leakgauge.engine import Observed, Replay
from leakgauge.engine.reference import Weights

TRUST, ENOUGH = 0.95, 0.5
"""Largest weight of the nearest signal that explains what was sent; the rest is what was sent itself, because bounds alone have no slope
inside. It is reached by a defense that loses a share ``ENOUGH`` of the energy: what one sends that loses little is the better guide."""
LENGTHS = 3
"""How often the length of a candidate's signal is corrected."""
LEAST = 0.1
"""A smaller weight is not worth whole gradients, and counts as 0."""
WHITENING = 0.25
"""Power of 1/σ² by which tensors of different noise are weighed. 1 is the likelihood of a squared distance, and too much for a search by
direction: it would look at the last layers only (images 310 to 315, powers 0, 0.25, 0.5 and 1)."""
FIRST = 0.1
"""Share of a search that compares with what was sent only. Far from the truth that is the better guide: bounds say little there."""


def useful(defenses: Sequence[Defense] | None) -> tuple[Explains, ...]:
    """The defenses that change what a replay is compared with: the last ones, as far back as each says what came before it.

    Empty where only noise of one size is left: of that alone, what was sent is the best explanation.
    """
    known: list[Explains] = []
    for defense in reversed(defenses or ()):
        if not isinstance(defense, Explains):
            break
        known.insert(0, defense)
    return tuple(known) if any(not isinstance(one, AddsNoise) or isinstance(one, Weighs) for one in known) else ()


def explained(defenses: Sequence[Explains], plain: Signal, sent: Signal) -> Signal:
    """The signal nearest to ``plain`` that ``defenses`` send as ``sent``, each row a message: the last defense is undone first.

    Exact for one defense. Of several, each is undone next to what those before it make of ``plain``.
    """
    stages = [plain]
    for defense in defenses[:-1]:
        stages.append(defense.replayed(stages[-1]))
    for defense, before in zip(reversed(defenses), reversed(stages), strict=True):
        sent = defense.nearest(before, sent)
    return sent


def explained_direction(
    defenses: Sequence[Explains], plain: Signal, sent: Signal, *, by_support: bool = False
) -> Signal:
    """As :func:`explained`, for distances that ignore the length of ``plain``. At a random start it is a thousand times too long, and would
    exceed every bound, so it is first given the length of what was sent, and then that of what explains it, which may be longer.

    With ``by_support`` it is first fitted to the entries that were sent, which gives the truth its own length at once where entries were
    left out.
    """
    length, target = row_norms(plain).clamp_min(torch.finfo(torch.float64).tiny), sent
    fitted = _fitted(plain, sent) if by_support else None
    for number in range(LENGTHS):
        factor = row_norms(target) / length
        if number == 0 and fitted is not None:
            factor = torch.where(fitted > 0, fitted, factor)
        target = explained(defenses, {name: t * column(factor, t) for name, t in plain.items()}, sent)
    return target


def _fitted(plain: Signal, sent: Signal) -> Tensor:
    """The factor of each row of ``plain`` that brings it nearest to ``sent`` where that is not zero."""
    dots = [as_rows(plain[n] * t).double().sum(1) for n, t in sent.items()]
    squares = [as_rows(torch.where(t != 0, plain[n], 0.0)).double().square().sum(1) for n, t in sent.items()]
    return torch.stack(dots).sum(0) / torch.stack(squares).sum(0).clamp_min(torch.finfo(torch.float64).tiny)


def only_shown(defenses: Sequence[Explains], plain: Signal, sent: Signal) -> dict[str, Tensor]:
    """``plain`` without the entries that the last defense left out of ``sent`` whatever they were."""
    last = defenses[-1] if defenses else None
    if not isinstance(last, Masks):
        return dict(plain)
    shown = last.shown(sent)
    return {name: torch.where(shown[name].to(t.device), t, 0.0) for name, t in plain.items()}


def trust(defenses: Sequence[Explains], plain: Signal) -> float:
    """TRUST · min(1, (lost / ENOUGH)²), or 0 below ``LEAST``; lost = 1 − cos² is the share of the energy of ``plain`` (one message) that
    the defenses lose."""
    rows = {name: t[None] for name, t in plain.items()}
    sent: Signal = rows
    for defense in defenses:
        sent = defense.replayed(sent)
    shared = {name: rows[name] for name in sent}
    dot = torch.stack([(shared[name] * t).double().sum() for name, t in sent.items()]).sum()
    lengths = row_norms(shared) * row_norms(sent)
    lost = 1 - float((dot / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).square())
    weight = TRUST * min(1.0, (lost / ENOUGH) ** 2)
    return weight if weight >= LEAST else 0.0


@dataclass(frozen=True, eq=False)
class DefendedReplay:
    """``replay`` compared with trust · (the nearest signal that explains what was ``observed``) + (1 − trust) · (that itself).

    It needs whole gradients. The nearest signal is held fixed in derivatives, which for a squared distance to a convex set is exact.
    ``per_sample``: each sample is a message of its own.
    """

    replay: Replay
    observed: Observed
    defenses: tuple[Explains, ...]
    trust: Tensor
    per_sample: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return self.replay.names

    @cached_property
    def own(self) -> dict[str, Tensor]:
        """The candidates' signals, (R, *shape), without the entries that a known defense left out whatever they were: these would only
        dilute the others."""
        return only_shown(
            self.defenses, {name: self.replay.gradient(name) for name in self.names}, self.observed.signal
        )

    @cached_property
    def _direction(self) -> dict[str, Tensor]:
        return self._target(explained_direction)

    @cached_property
    def _values(self) -> dict[str, Tensor]:
        return self._target(explained)

    def _target(self, undo: _Undo) -> dict[str, Tensor]:
        """What the candidates are compared with, (R, *shape)."""
        plain = {name: t.detach() for name, t in self.own.items()}
        sent = {name: self.observed.signal[name].expand_as(t) for name, t in plain.items()}
        messages = [{n: t.flatten(0, 1) for n, t in one.items()} if self.per_sample else one for one in (plain, sent)]
        with torch.no_grad():
            near = undo(self.defenses, *messages)
            return {name: torch.lerp(t, near[name].view_as(t), self.trust.to(t)) for name, t in sent.items()}

    def dot(self, weights: Weights) -> Tensor:
        return _sum(weights, {n: as_rows(self.own[n] * self._direction[n]).sum(1) for n in weights})

    def square(self, weights: Weights) -> Tensor:
        return _sum(weights, {n: as_rows(self.own[n]).square().sum(1) for n in weights})

    def l2(self, weights: Weights) -> Tensor:
        return _sum(weights, {n: as_rows(self.own[n] - self._values[n]).square().sum(1) for n in weights})

    def l1(self, weights: Weights) -> Tensor:
        return _sum(weights, {n: as_rows(self.own[n] - self._values[n]).abs().sum(1) for n in weights})

    def observed_square(self, weights: Weights) -> Tensor:
        return _sum(weights, {n: as_rows(self._direction[n]).square().sum(1) for n in weights})

    def gradient(self, name: str) -> Tensor:
        return self.own[name]

    def inputs(self, name: str) -> Tensor:
        return self.replay.inputs(name)


def precision(defenses: Sequence[Explains], observed: Observed) -> dict[str, float]:
    """Weight of each observed tensor, (1/σ²)^``WHITENING``, where the last known defense adds noise of different sizes. Empty otherwise."""
    last = defenses[-1] if defenses else None
    if not isinstance(last, Weighs):
        return {}
    found = last.precision(observed.signal)
    most = max(found.values(), default=0.0)
    return {name: (value / most) ** WHITENING for name, value in found.items()} if most > 0 else {}


@dataclass(frozen=True, eq=False)
class WeighedReplay:
    """``replay`` with every tensor weighed by ``factors``: for noise of size σ_l on tensor l, by 1/σ_l²."""

    replay: Replay
    factors: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        return self.replay.names

    def _weighed(self, weights: Weights) -> dict[str, float]:
        return {name: w * self.factors[name] for name, w in weights.items()}

    def dot(self, weights: Weights) -> Tensor:
        return self.replay.dot(self._weighed(weights))

    def square(self, weights: Weights) -> Tensor:
        return self.replay.square(self._weighed(weights))

    def l2(self, weights: Weights) -> Tensor:
        return self.replay.l2(self._weighed(weights))

    def l1(self, weights: Weights) -> Tensor:
        return self.replay.l1({name: w * self.factors[name] ** 0.5 for name, w in weights.items()})

    def observed_square(self, weights: Weights) -> Tensor:
        return self.replay.observed_square(self._weighed(weights))

    def gradient(self, name: str) -> Tensor:
        return self.replay.gradient(name)

    def inputs(self, name: str) -> Tensor:
        return self.replay.inputs(name)


class _Undo(Protocol):
    def __call__(self, defenses: Sequence[Explains], plain: Signal, sent: Signal) -> Signal: ...


def _sum(weights: Weights, values: dict[str, Tensor]) -> Tensor:
    return torch.stack([w * values[name] for name, w in weights.items()]).sum(0)
