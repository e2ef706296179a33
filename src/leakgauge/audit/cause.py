"""Why an attack failed: what it optimised, evaluated at the truth, at what it found and at its null run.

This runs after the attack, as scoring does. The truth never reaches the attack.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from leakgauge.channels import ShuffledFedAvg
from leakgauge.channels.dropout import dropping_layers
from leakgauge.channels.facts import searches_draws, single_client, smooth
from leakgauge.channels.twice import refuse_once_only
from leakgauge.core import Adaptable, Attack, Channel, Observation, PerSample, Reconstruction, Targets, Victim
from leakgauge.errors import Inapplicable
from leakgauge.inversion import infer_labels
from leakgauge.inversion.labels import read_or_none
from leakgauge.inversion.matching import too_narrow, widen
from leakgauge.inversion.mismatch import OUTSIDE, continue_from, layer_mismatch, outside, settle_from
from leakgauge.inversion.output_gradient import mismatch_along


class Cause(StrEnum):
    """Why a negative is one. The first two make it evidence, all others make it inconclusive."""

    INFORMATION = "information"
    """Another image explains what was sent as well as the truth does."""
    KNOWLEDGE = "knowledge"
    """The truth does not explain it either, because the adversary lacks something that the client used."""
    SEARCH = "search"
    """The truth explains it better than what was found."""
    EFFORT = "effort"
    """The attack took fewer steps than one needs to succeed."""
    CONTROL = "control"
    """The same attack fails where it must work."""
    UNCONTROLLED = "uncontrolled"
    """Nobody tried whether the attack works where it must."""
    UNTESTED = "untested"
    """Nobody evaluated the objective at the truth."""


class Knowledge(StrEnum):
    """What the client used and the adversary lacked."""

    LABELS = "labels"
    MASKS = "masks"
    ORDER = "order"
    STATISTICS = "statistics"
    DEFENSE = "defense"


@dataclass(frozen=True)
class Client:
    """What only the client knows: its labels, its channel with all secrets, the seed of its dropout masks (None: not known), and the
    running statistics with which it normalises, by name, where it keeps its own (None: those of the shared model).
    """

    labels: Targets
    channel: Channel
    secret: int | None
    statistics: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Three:
    """A number at the truth, at what was found and at the null run; None where it cannot be computed."""

    truth: float
    found: float
    null: float | None = None


@dataclass(frozen=True)
class Settled:
    """Where searches with the weight ``smoothness`` of total variation settle, beside noise: mismatch plus that term, once from the
    truth and once from what was found. ``shown`` says of each whether its image shows the truth.
    """

    smoothness: float
    truth: float
    found: float
    shown: tuple[bool, bool]

    @property
    def finds_truth(self) -> bool:
        """Whether a search would show the truth: the one from what was found does, or the one that began there stays and is no worse."""
        return self.shown[1] or (self.shown[0] and self.truth <= (1 + ALIKE) * self.found)


@dataclass(frozen=True)
class TruthTest:
    """How well the truth, the result and the null run explain what was sent, and the ``cause`` that follows for a failure.

    ``mismatch`` is :func:`~leakgauge.inversion.mismatch.layer_mismatch` with what the adversary knows, ``objective`` the attack's own,
    where it has one that depends on the samples alone. ``informed`` is the mismatch of the truth with everything that the client used
    except its noise. ``lacks`` names what would make the truth fit. Differences up to ``rounding`` mean nothing. ``continued`` is the
    mismatch that a continued search reached, where one was made. ``settled`` compares like with like where the truth itself does not fit,
    because of noise.
    """

    cause: Cause
    mismatch: Three
    informed: float
    rounding: float
    objective: Three | None = None
    lacks: tuple[Knowledge, ...] = ()
    continued: float | None = None
    settled: Settled | None = None


@runtime_checkable
class StatesObjective(Protocol):
    """An attack that can evaluate its objective at a given candidate."""

    def objective_at(self, victim: Victim, seen: Observation, x: Tensor, y: Tensor, /, *, seed: int = 0) -> float: ...


ROUNDINGS = 100.0
"""Differences of so many times the rounding of one replay still mean nothing. A mismatch is a square: these are ten units in the last
place of the signal."""
DRAWS = 3
CLOSE = 0.5
"""A search is continued where it left at most this share of the null run's mismatch."""
ALIKE = 0.01
"""Two searches that settle within this share of each other have come as far: a few dozen replays do not tell them apart."""
SMOOTHNESS = (0.1, 0.01)
"""Weights of total variation of the searches that are started at the truth: those of the recipes that race in ``strongest``."""


def explain(
    attack: Attack,
    victim: Victim,
    seen: Observation,
    found: Reconstruction,
    x: Tensor,
    client: Client,
    *,
    nothing: Reconstruction | None = None,
    shows: Callable[[Tensor], bool] | None = None,
    thorough: bool = True,
    seed: int = 0,
) -> TruthTest:
    """Why ``attack``, which found ``found``, did not find the truth ``x`` of the ``client``.

    With m the mismatch under the adversary's knowledge, m* that with all that the client used, x̂ what was found and ε the rounding:

        m(x̂) > m(x) + ε             search        a better search would have preferred the truth
        m(x̂) > m*(x) + ε otherwise  knowledge     with what the adversary lacks it would have
        otherwise                   information   another image explains what was sent as well

    Where noise or a defense keeps even the informed truth from fitting (m*(x) > ε), a search that may choose every pixel fits part of the
    noise, and explains more than the truth does wherever it ends. There like is compared with like: the same short search, with a prior,
    starts at the truth and at x̂ (:class:`Settled`). If the one from the truth still shows it and explains as much as the other, or if the
    other shows it too, the cause is *search*; where such a search cannot be made, it is *untested*.

    Labels that a rule of ours reads in the same observation are no knowledge that an adversary lacks, and neither is the class of a
    single image, of which all can be tried: an attack that looked for them itself and found others failed as a search. So did one that
    searches the client's draws and does not find them: the truth is replayed with these. Where the samples of a batch are separated at the
    head, m is the smaller of two replays, with labels and along the gradient at the output. The attack's own objective, which has priors
    too, must agree that the truth is no better; otherwise the search failed. A search that came close is continued first
    (``continue_from``), because no finite search meets rounding by itself; what it comes to counts only if it is an image that does not
    show the truth (``shows`` tells). ε is what rounding the truth to its number type does to m, times ``ROUNDINGS``.
    ``nothing`` is the null run. Without ``thorough`` no search is continued.
    """
    if too_narrow(victim):
        victim, (seen,) = widen(victim, [seen])
        x = x.float()
    ours = _adversary_labels(found, seen, client)
    true = _Replay(victim, seen, x, client)
    drawn = replace(seen, channel=client.channel) if searches_draws(seen.channel) else seen
    at_truth, informed = replace(true, seen=drawn).known(ours), true.informed()
    moved = [layer_mismatch(victim, drawn, z, ours, seed=seed) for z in _rounded(x, seed)]
    separated = None if seen.labels is not None else mismatch_along(victim, seen, x, seed=seed)
    if separated is not None and separated < at_truth:  # samples that left no trace need no label
        at_truth = separated
        moved = [m for z in _rounded(x, seed) if (m := mismatch_along(victim, seen, z, seed=seed)) is not None]
    rounding = ROUNDINGS * max(abs(m - at_truth) for m in moved)

    def mismatch(one: Reconstruction, x: Tensor) -> float:
        replayed = layer_mismatch(victim, seen, victim.to_input(x), _own(one, ours), seed=seed)
        along = None if separated is None else mismatch_along(victim, seen, victim.to_input(x), seed=seed)
        return replayed if along is None else min(replayed, along)

    at = _objective(attack, victim, seen, seed)
    at_found = mismatch(found, found.x)
    at_null = None if nothing is None else mismatch(nothing, nothing.x)
    best, continued = _as_image(victim, found.x), None
    reached = at_found if best is found.x else mismatch(found, best)
    if (
        thorough
        and reached > at_truth + rounding
        and at_null is not None
        and reached <= CLOSE * at_null
        and _continues(victim, seen)
    ):
        z, continued = continue_from(victim, seen, best, _own(found, ours), goal=at_truth + rounding, seed=seed)
        if not (shows is not None and shows(z)):
            reached, best = continued, z
    objective = prefers_truth = None
    if at is not None and isinstance(ours, Tensor):
        blind = None if nothing is None else at(nothing.x, _own(nothing, ours))
        objective = Three(at(x, ours), at(found.x, _own(found, ours)), blind)
        prefers_truth = at(best, _own(found, ours)) > objective.truth + _slack(objective.truth)
    lacks: tuple[Knowledge, ...] = ()
    if reached > at_truth + rounding or prefers_truth:
        cause = Cause.SEARCH
    elif reached > informed + rounding:
        cause, lacks = Cause.KNOWLEDGE, true.missing(ours, fits=reached)
        if lacks == (Knowledge.LABELS,) and (_can_try_all(seen, client) or reached > true.readable(seed) + rounding):
            cause, lacks = Cause.SEARCH, ()
    else:
        cause = Cause.INFORMATION
    settled = None
    if cause is not Cause.SEARCH and thorough and informed > rounding:
        settled = _settle(victim, seen, (x, ours), (best, _own(found, ours)), shows, seed)
        if settled is None or settled.finds_truth:
            cause, lacks = Cause.UNTESTED if settled is None else Cause.SEARCH, ()
    return TruthTest(
        cause, Three(at_truth, at_found, at_null), informed, rounding, objective, lacks, continued, settled
    )


def _can_try_all(seen: Observation, client: Client) -> bool:
    """Whether the adversary, who was not given labels, could attack once with every class: there is one image, and it has one class."""
    labels = client.labels
    return seen.labels is None and isinstance(labels, Tensor) and labels.dim() == 1 and len(labels) == 1


def _settle(
    victim: Victim,
    seen: Observation,
    truth: tuple[Tensor, Targets],
    found: tuple[Tensor, Targets],
    shows: Callable[[Tensor], bool] | None,
    seed: int,
) -> Settled | None:
    """The first pair of searches that finds the truth, or else the last; None where the mismatch cannot be followed downhill."""
    if not _continues(victim, seen):
        return None
    made = None
    for smoothness in SMOOTHNESS:
        (near, own), (far, other) = (
            settle_from(victim, seen, victim.to_input(x), y, smoothness=smoothness, seed=seed)
            for x, y in (truth, found)
        )
        made = Settled(smoothness, own, other, (True, False) if shows is None else (shows(near), shows(far)))
        if made.finds_truth:
            break
    return made


@dataclass(frozen=True, eq=False)
class _Replay:
    """The truth, replayed with more or less of what the client used."""

    victim: Victim
    seen: Observation
    x: Tensor
    client: Client

    def known(
        self,
        labels: Targets,
        *,
        order: bool = False,
        masks: bool = False,
        statistics: bool = False,
        defense: bool = False,
    ) -> float:
        seen = replace(self.seen, channel=self.client.channel) if order or defense else self.seen
        victim = self._normalising() if statistics else self.victim
        return layer_mismatch(victim, seen, self.x, labels, masks=self.client.secret if masks else None)

    def _normalising(self) -> Victim:
        """The victim with the client's own running statistics."""
        model = copy.deepcopy(self.victim.model)
        model.load_state_dict(dict(self.client.statistics or {}), strict=False)
        return replace(self.victim, model=model)

    @property
    def statistics_secret(self) -> bool:
        return self.client.statistics is not None

    @property
    def order_secret(self) -> bool:
        return isinstance(single_client(self.seen.channel), ShuffledFedAvg)

    @property
    def defense_secret(self) -> bool:
        """Whether the client protects by a channel that the adversary may not know, or of which it does not know the draws."""
        return isinstance(self.client.channel, Adaptable) and self.seen.channel != self.client.channel

    @property
    def masks_secret(self) -> bool:
        dropping = self.victim.mode == "train" and bool(dropping_layers(self.victim.model))
        return dropping and self.client.secret is not None

    def informed(self) -> float:
        return self.known(
            self.client.labels,
            order=self.order_secret,
            masks=self.masks_secret,
            statistics=self.statistics_secret,
            defense=self.defense_secret,
        )

    def readable(self, seed: int) -> float:
        """Mismatch of the truth with the labels that can be read in what was sent; as if nothing fitted where none can be."""
        read = read_or_none(infer_labels(), self.victim, self.seen, seed=seed).labels
        return math.inf if read is None else self.known(in_order(read, self.client.labels))

    def missing(self, labels: Targets, *, fits: float) -> tuple[Knowledge, ...]:
        """Each piece that alone makes the truth explain more than was found; all that help where none does alone."""
        pieces = {
            Knowledge.LABELS: self.known(self.client.labels),
            Knowledge.ORDER: self.known(labels, order=True) if self.order_secret else None,
            Knowledge.MASKS: self.known(labels, masks=True) if self.masks_secret else None,
            Knowledge.STATISTICS: self.known(labels, statistics=True) if self.statistics_secret else None,
            Knowledge.DEFENSE: self.known(labels, defense=True) if self.defense_secret else None,
        }
        known = {piece: value for piece, value in pieces.items() if value is not None}
        alone = tuple(piece for piece, value in known.items() if value < fits)
        without = self.known(labels)
        return alone or tuple(piece for piece, value in known.items() if value < without)


def _adversary_labels(found: Reconstruction, seen: Observation, client: Client) -> Targets:
    """The labels that the attack used, given to the true images as well as they fit; the true ones where it used none."""
    ours = seen.labels if found.y is None else found.y
    if ours is None:
        return client.labels
    return in_order(ours, client.labels)


def in_order(ours: Targets, true: Targets) -> Targets:
    """Class labels in the order of the true images: a true label that was read stays where it is, wrong ones take the other places.

    >>> in_order(torch.tensor([1, 2, 2]), torch.tensor([2, 3, 1])).tolist()
    [2, 2, 1]
    """
    if isinstance(ours, Mapping) or isinstance(true, Mapping) or ours.dim() != 1 or ours.shape != true.shape:
        return ours
    left = Counter(ours.tolist())
    kept: list[int | float | None] = []
    for label in true.tolist():
        kept.append(label if left[label] else None)
        left[label] -= bool(left[label])
    wrong = left.elements()
    return torch.tensor([next(wrong) if label is None else label for label in kept]).to(ours)


def _own(found: Reconstruction, ours: Targets) -> Targets:
    """The labels of what was found, in its own order."""
    return ours if found.y is None else found.y


def _rounded(x: Tensor, seed: int) -> list[Tensor]:
    """The truth with other last places of its pixels."""
    unit, rng = torch.finfo(x.dtype).eps, torch.Generator().manual_seed(seed)
    signs = [torch.randint(0, 2, x.shape, generator=rng).to(x) * 2 - 1 for _ in range(DRAWS)]
    return [x * (1 + unit * sign) for sign in signs]


def _slack(value: float) -> float:
    """Rounding of an objective, which is computed in float32."""
    return ROUNDINGS * torch.finfo(torch.float32).eps * max(1.0, abs(value))


def _objective(
    attack: Attack, victim: Victim, seen: Observation, seed: int
) -> Callable[[Tensor, Targets], float] | None:
    """The attack's own objective as a function of images and labels; None where it has none, or depends on draws that are searched too."""
    if not isinstance(attack, StatesObjective) or searches_draws(seen.channel):
        return None

    def at(x: Tensor, y: Targets) -> float:
        assert isinstance(y, Tensor)
        return attack.objective_at(victim, seen, x, y, seed=seed)

    return at


def _as_image(victim: Victim, x: Tensor) -> Tensor:
    """``x`` itself if it is an image; where pixels are out of their bounds, the nearest image."""
    return x if bool(outside(victim.space, x).abs().max() <= OUTSIDE) else victim.space.project(x)


def _continues(victim: Victim, seen: Observation) -> bool:
    """Whether the mismatch can be followed downhill."""
    if smooth(seen.channel) != seen.channel or searches_draws(seen.channel):
        return False
    try:
        if not isinstance(seen.channel, PerSample):
            refuse_once_only(victim.model)
    except Inapplicable:
        return False
    return True
