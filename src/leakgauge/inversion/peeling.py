"""Batches of a decoder with more tokens than its layers have directions: sentences are found and subtracted until the rest fits.

The update is a weighted sum of the updates of its sentences. Whoever has found a sentence can compute its part and subtract it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from leakgauge.channels.facts import clients
from leakgauge.core import Observation, Signal, Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.inversion.readers import Reading
from leakgauge.inversion.sentence_search import WIDER, by_rank
from leakgauge.inversion.span_levels import Level, Spans, level_of, sentence_level

SHARES = (0.05, 0.1, 0.2, 0.3, 0.5)
"""How much nearer to the span than others each token must be, strictest first. Found on seeds below 1000 at widths 64, 256 and 768."""
EQUAL = 1e-2
"""Factors that differ by less than this are taken for one,"""
TWICE = 2
"""and a sentence is in the update if so many agree: one factor that removes a direction is found for any sentence."""
CLASSES = 16
"""Labels that are tried for a sentence at most; with more classes nothing is subtracted."""
BINARY = 2
ENOUGH = 16
"""If so many sentences in a row are not in the update, the others are looked for again, in what is left."""
CROWDED = 8
"""If so many are found for each sentence and none of them is in the update, nothing is looked for any more."""
FREE = 16
"""Directions that must be left to tell the sentences that remain."""
LARGE = 1e-2
"""Eigenvalues below this share of the largest are rounding."""


@dataclass(eq=False)
class Peeled:
    """Sentences that were found and subtracted, ``ids`` without padding.

    ``level`` tells the others; None if they fill all directions, or if ``nothing_left`` is.
    """

    ids: list[Tensor] = field(default_factory=list)
    level: Level | None = None
    nothing_left: bool = False


def peel(
    spans: Spans, seen: Observation, signal: Signal, sets: Sequence[Tensor], size: int, *, padding: int | None
) -> Peeled:
    """Subtracts sentences from the update of a decoder until those that are left fit.

    A sentence is looked for by its distances (:func:`by_rank`), then tested: the gradient of a layer that reads single tokens loses as many
    directions as tokens occur in this sentence only if just its part is subtracted (:func:`factor_in`). A wrong token anywhere
    changes the gradient at all places, so a wrong sentence is not subtracted.
    """
    peeled = Peeled()
    if not _can_peel(spans, seen):
        return peeled
    victim, shares = spans.reader.victim, list(SHARES)
    readings = (spans.tokens[0].reading, *spans.context)
    sent = {one.parameter: signal[one.parameter] for reading in readings for one in reading.readers}
    rest: _Rest | None = _Rest(spans, seen, sent, sent)
    widest = max(spans.context, key=lambda reading: reading.width - min(reading.rows, reading.width))
    while shares and rest is not None and len(peeled.ids) < size:
        level, _ = sentence_level(spans.context, victim, seen, rest.left, spans.crowd, causal=True, sent=sent)
        if level is not None and level.span.free >= FREE:
            peeled.level = level
            break
        full = level_of(widest, victim, seen, rest.left, spans.crowd, sent=sent)
        if full is None:
            break
        missing, by_place = size - len(peeled.ids), spans.tokens[0].reading.by_place
        found = by_rank(spans.reader, widest, full.span, sets, missing, share=shares[0], by_place=by_place)
        before, failed = len(peeled.ids), 0
        for ids in found[: WIDER * size]:
            if rest is None or len(peeled.ids) == size or (failed >= ENOUGH and len(peeled.ids) > before):
                break
            if any(torch.equal(ids, other) for other in peeled.ids):
                continue
            part = _part_of(rest, ids, size, padding=padding)
            failed = 0 if part is not None else failed + 1
            if part is not None:
                peeled.ids.append(ids)
                rest = rest.without(part)
        if len(peeled.ids) == before:
            if len(found) > CROWDED * missing:  # with a weaker condition there would be more of them, and all as wrong
                break
            del shares[0]
    peeled.nothing_left = rest is None
    return peeled


def _can_peel(spans: Spans, seen: Observation) -> bool:
    """Whether the parts of sentences can be computed and compared: a decoder, one client, one step, no noise."""
    return (
        spans.reader.layout.causal
        and bool(spans.context)
        and not spans.coarse
        and spans.steps == 1
        and clients(seen.channel) == 1
    )


@dataclass(frozen=True, eq=False)
class _Rest:
    """What is ``left`` of the update that was ``sent``, for the layers that tell tokens and sentences."""

    spans: Spans
    seen: Observation
    sent: Signal
    left: Signal

    @cached_property
    def rank(self) -> int:
        """Directions of the first layer that reads single tokens."""
        level = level_of(self.reading, self.victim, self.seen, self.left, self.spans.crowd, sent=self.sent)
        return 0 if level is None else level.span.rank

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The singular values of this layer's gradient and their vectors, without rounding."""
        u, s, v = torch.linalg.svd(self.stacked(self.left).cpu(), full_matrices=False)
        return u[:, : self.rank], s[: self.rank], v[: self.rank]

    @property
    def reading(self) -> Reading:
        return self.spans.tokens[0].reading

    @property
    def victim(self) -> Victim:
        return self.spans.reader.victim

    def stacked(self, signal: Signal) -> Tensor:
        return torch.cat([one.gradient(signal) for one in self.reading.readers]).double()

    def without(self, part: Signal) -> _Rest | None:
        """None if nothing is left."""
        found = replace(self, left={name: value - part[name] for name, value in self.left.items()})
        return found if found.rank else None


def _part_of(rest: _Rest, ids: Tensor, size: int, *, padding: int | None) -> Signal | None:
    """What a sentence adds to the update; None if it is not in it."""
    length = rest.victim.space.shape[0]
    if len(ids) < length and padding is None:
        return None
    longest = (
        min(length, len(ids) + 1) if rest.spans.reader.layout.cuts else length
    )  # its end is predicted, and nothing after it
    row = torch.cat([ids, ids.new_full((longest - len(ids),), padding or 0)])
    for own in _updates_of(rest, row):
        factor, count = factor_in(rest.factors, rest.stacked(own).cpu())
        if count < TWICE:
            continue
        for exact in _likely(factor, len(ids), size):
            part = {name: exact * own[name] for name in rest.left}
            after = rest.without(part)
            if after is None or after.rank <= rest.rank - TWICE:
                return part
    return None


def _updates_of(rest: _Rest, row: Tensor) -> Iterator[Signal]:
    """The update of one sentence by itself, for each label that it could have; a model of language predicts its tokens."""
    victim, space, x = rest.victim, rest.victim.space, rest.victim.to_input(row[None])
    assert isinstance(space, Tokens)
    with torch.no_grad(), private_randomness(0, victim.device):
        scores = victim(x)
    classes = scores.shape[-1]
    if scores.shape == (*x.shape, space.vocab):
        targets = [x]
    elif classes == BINARY:  # the gradients for both labels have one direction
        targets = [x.new_tensor([0])]
    else:
        targets = [x.new_tensor([label]) for label in range(classes) if classes <= CLASSES]
    for y in targets:
        yield rest.seen.channel(victim, x, y)


def factor_in(whole: tuple[Tensor, Tensor, Tensor], part: Tensor) -> tuple[float, int]:
    """The factor w for which ``whole`` − w ``part`` has the fewest directions, and how many fewer; (0, 0) if there is none.

    ``whole`` is U S V. If it is w part + rest, a direction x along which the rest reads nothing has whole x = w part x. So whole⁺ part has
    the eigenvalue 1 / w, once for each input that is in the part only.

    >>> unit = torch.eye(3, dtype=torch.float64)
    >>> factor_in((unit, torch.ones(3, dtype=torch.float64), unit), torch.diag(torch.tensor([2.0, 5.0, 2.0])).double())
    (0.5, 2)
    """
    u, s, v = whole
    found = torch.linalg.eigvals((u.T @ part @ v.T) / s[:, None])
    found = found[found.abs() > LARGE * found.abs().amax()]
    real = found.real[found.imag.abs() <= EQUAL * found.abs()]
    if len(real) == 0:
        return 0.0, 0
    near = (real[:, None] / real - 1).abs() <= EQUAL
    best = int(near.sum(1).argmax())
    return 1 / float(real[near[best]].median()), int(near[best].sum())


def _likely(factor: float, length: int, size: int) -> list[float]:
    """Exact values that a factor known to about 1 % may have: 1 / sentences, targets of this one / targets of all, or as it is."""
    averages = [math.copysign(1 / size, factor)]
    for own in (length, length + 1, length - 1):
        averages += [own / near for near in (round(own / factor),) if near]
    close = [one for one in averages if abs(one / factor - 1) <= EQUAL]
    return [*sorted(close, key=lambda one: abs(one / factor - 1)), factor]
