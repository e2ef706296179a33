"""Whole batches of sentences from the gradients of linear layers, which span what the layers read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core import Observation, Reconstruction, Signal, Tokens, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none
from leakgauge.inversion.peeling import Peeled, peel
from leakgauge.inversion.readers import TextReader
from leakgauge.inversion.row_spans import RowSpan
from leakgauge.inversion.sentence_search import Found, by_descent, by_place
from leakgauge.inversion.span_levels import Level, SpanLimit, Spans, find_spans, too_many

CHANCE = 1e-6
"""A sentence is certified if random vectors in place of its inputs would pass with at most this probability, all candidates together."""
SAME = 1e-4
"""Inputs that differ by less than this share of their length are the same."""
LEFT = 4.0
"""What the found sentences leave of the gradient may be this many times as large as white noise."""
CHUNK = 128
"""Rows of ids that are read at once."""


def span_limits(
    victim: Victim, seen: Observation, *, padding: int | None = None, seed: int = 0
) -> tuple[SpanLimit, ...]:
    """What :func:`token_spans` will be able to tell, layer by layer, before it tries any token. Refuses what it would refuse."""
    signal = Observed.check(seen.signal, victim).signal
    return find_spans(victim, seen, signal, padding=_padding(victim, padding), seed=seed).limits


@dataclass(frozen=True)
class TokenSpans:
    """The attack made by :func:`token_spans`."""

    labels: LabelRule
    padding: int | None
    tries: int

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began, size = time.perf_counter(), batch_size(seen)
        signal = Observed.check(seen.signal, victim).signal
        padding = _padding(victim, self.padding)
        spans = find_spans(victim, seen, signal, padding=padding, seed=seed)
        among, filler = _candidates(victim, signal, size), 0 if padding is None else padding
        sets = token_sets(spans, among, size, guess=False)
        found = self._sentences(spans, sets, size, guess=False, seed=seed)
        answer = _answer(spans, sets, found, size, guess=False, filler=filler)
        peeled = None
        if spans.sentences is None and any(len(one) for one in sets):
            peeled = peel(spans, seen, signal, sets, size, padding=padding)
            answer = _with_peeled(spans, sets, peeled, answer, size, filler=filler)
        guess = (spans.coarse or spans.steps > 1) and not answer.whole and answer.sentences < size
        if guess:
            sets = token_sets(spans, among, size, guess=True)
            found = self._sentences(spans, sets, size, guess=True, seed=seed)
            answer = _answer(spans, sets, found, size, guess=True, filler=filler)
        if not any(len(one) for one in sets):
            raise Inapplicable(
                "no token is in the span of the first layer's gradient: it holds more tokens than it has directions, or was pruned"
            )
        return Reconstruction.single(
            victim.to_input(answer.ids),
            labels_or_none(self.labels, victim, seen, seed=seed),
            loss=answer.distance,
            made_by=repr(self),
            began=began,
            notes=_notes(spans, found, answer, size, guess=guess, peeled=peeled),
            stated=stated(spans.limits),
            certified=answer.certified,
        )

    def _sentences(self, spans: Spans, sets: Sequence[Tensor], size: int, *, guess: bool, seed: int) -> Found:
        level = spans.sentences
        if level is None:
            return Found()
        if spans.reader.layout.causal:
            return by_place(spans.reader, level.reading, level.span, sets, size, guess=guess)
        return by_descent(spans.reader, level.reading, level.span, sets, size, tries=self.tries, seed=seed)


def _padding(victim: Victim, given: int | None) -> int | None:
    """The id that fills short sentences: as given, or as the victim's loss or embedding names it."""
    tables = (m.padding_idx for m in victim.model.modules() if isinstance(m, torch.nn.Embedding))
    named = (given, getattr(victim.loss, "padding", None), *tables)
    return next((one for one in named if one is not None), None)


def _candidates(victim: Victim, signal: Signal, size: int) -> Tensor:
    """Ids to try: the whole vocabulary, or the rows of a token table that got a gradient if these are few enough to be the tokens."""
    assert isinstance(victim.space, Tokens)
    for module in victim.model.modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings == victim.space.vocab:
            name = next((n for n, p in victim.model.named_parameters() if p is module.weight), "")
            if name in signal:
                rows = signal[name].abs().amax(1) > 0
                if 0 < int(rows.sum()) <= size * victim.space.length:
                    if module.padding_idx is not None:
                        rows[module.padding_idx] = True
                    return rows.nonzero().flatten()
    return torch.arange(victim.space.vocab, device=victim.device)


def token_sets(spans: Spans, among: Tensor, size: int, *, guess: bool) -> list[Tensor]:
    """For each place the ids out of ``among`` that may be there: what the layers would read is in the span of every level of tokens.

    With ``guess`` also those that are nearest: as many as there are sentences at each place, or as many as the gradient has directions.
    """
    reader = spans.reader
    length = reader.victim.space.shape[0]
    by_place = any(level.reading.by_place for level in spans.tokens)
    ids = among[:, None].expand(-1, length) if by_place else _rows_of(among, length)
    near = torch.ones(ids.shape, dtype=torch.bool, device=among.device)
    for level in spans.tokens:
        near &= _in_chunks(reader, level, ids, level.span.holds)
    near = near if by_place else near.flatten()[: len(among), None]
    if guess:
        distance = torch.stack([_in_chunks(reader, level, ids, level.span.distance) for level in spans.tokens]).sum(0)
        distance = distance if by_place else distance.flatten()[: len(among), None]
        most = size if by_place else min(level.span.rank for level in spans.tokens)
        near = near.scatter(0, distance.argsort(0)[: max(1, most)], value=True)
    found = [among[near[:, at]] for at in range(near.shape[1])]
    return found if by_place else found * length


def _in_chunks(reader: TextReader, level: Level, ids: Tensor, test: Callable[[Tensor], Tensor]) -> Tensor:
    """The test of what the level's layers read, for each of ``ids`` (n, length)."""
    parts = (reader.read(part, level.reading) for part in ids.split(CHUNK))
    return torch.cat([test(part.flatten(0, 1)).view(part.shape[:2]) for part in parts])


def _rows_of(ids: Tensor, length: int) -> Tensor:
    """Ids in rows of ``length``, the last one filled up with the first id."""
    missing = -len(ids) % length
    return torch.cat([ids, ids[:1].expand(missing)]).view(-1, length)


@dataclass(frozen=True, eq=False)
class Answer:
    """Sentences for the whole batch, ``sentences`` of them different; ``whole``: they explain every direction of the gradient."""

    ids: Tensor
    certified: Tensor
    distance: float
    whole: bool
    sentences: int


def _answer(spans: Spans, sets: Sequence[Tensor], found: Found, size: int, *, guess: bool, filler: int) -> Answer:
    length, level = len(sets), spans.sentences
    if level is None or not found.ids:
        return _without_order(spans, sets, size, guess=guess, filler=filler)
    vectors = [spans.reader.read(ids[None], level.reading)[0] for ids in found.ids]
    order = telling(vectors, found)
    shown = order[:size]
    exact = all(found.fits[k] for k in shown) and not (guess or found.crowded) and len(order) <= size
    read = torch.cat([vectors[k] for k in shown])
    whole = exact and explains(level.span, read)
    clear = (
        not spans.coarse
        or (  # otherwise noise may hide how a sentence goes on, or make it go on where it ends
            all(one.span.clear for one in (*spans.tokens, level)) and _new(read, read[:0]) <= level.span.rank
        )
    )
    likely = exact and clear and spans.steps == 1 and level.span.chance(read) * found.tested <= CHANCE
    rows = [_padded(found.ids[k], length, filler) for k in shown]
    sure = [
        likely
        and spans.hears_all(len(found.ids[k]))
        and (whole or len(found.ids[k]) == length)
        and not _has_twin(spans, level, sets, found.ids[k], vectors[k])
        for k in shown
    ]
    return Answer(
        torch.stack([rows[k % len(rows)] for k in range(size)]),
        torch.tensor([k < len(sure) and sure[k] for k in range(size)], device=rows[0].device),
        sum(found.distances[k] for k in shown) / (len(shown) * length),
        whole,
        len(order),
    )


def _with_peeled(
    spans: Spans, sets: Sequence[Tensor], peeled: Peeled, plain: Answer, size: int, *, filler: int
) -> Answer:
    """Sentences that were subtracted, and those that what is left tells: a guess, and none of them certified."""
    length, rows, level = len(sets), list(peeled.ids), peeled.level
    left, whole, distance = size - len(rows), peeled.nothing_left, 0.0
    if level is not None and left:
        found = by_place(spans.reader, level.reading, level.span, sets, left, guess=False)
        vectors = [spans.reader.read(ids[None], level.reading)[0] for ids in found.ids]
        order = telling(vectors, found) if vectors else []
        shown = order[:left]
        rows += [found.ids[k] for k in shown]
        whole = len(order) <= left and bool(shown) and explains(level.span, torch.cat([vectors[k] for k in shown]))
        distance = sum(found.distances[k] for k in shown) / (max(1, len(shown)) * length)
    if not rows:
        return plain
    padded = [_padded(ids, length, filler) for ids in rows]
    ids = torch.stack([padded[k] if k < len(padded) else plain.ids[k] for k in range(size)])
    return Answer(ids, torch.zeros(size, dtype=torch.bool, device=ids.device), distance, whole, len(rows))


def _has_twin(spans: Spans, level: Level, sets: Sequence[Tensor], ids: Tensor, vectors: Tensor) -> bool:
    """Whether the sentence ``ids``, which reads ``vectors`` (length, width), would read the same with another candidate at some place."""
    for at, own in enumerate(ids):
        alike = _alike(spans, own, sets[at][sets[at] != own], at)
        rows = ids.repeat(len(alike), 1)
        rows[:, at] = alike
        if len(rows):
            apart = (spans.reader.read(rows, level.reading) - vectors).norm(dim=2) > SAME * vectors.norm(dim=1)
            if not bool(apart.any(1).all()):
                return True
    return False


def _alike(spans: Spans, own: Tensor, others: Tensor, at: int) -> Tensor:
    """Those of the ids ``others`` that the layers before the context read like ``own`` at a place."""
    length, both = spans.reader.victim.space.shape[0], torch.cat([own[None], others])
    same = torch.ones(len(others), dtype=torch.bool, device=others.device)
    for level in spans.tokens if len(others) else ():
        if level.reading.by_place:
            read = spans.reader.read(both[:, None].expand(-1, at + 1), level.reading, last=True)
        else:
            read = spans.reader.read(_rows_of(both, length), level.reading).flatten(0, 1)[: len(both)]
        same &= (read[1:] - read[0]).norm(dim=1) <= SAME * read[0].norm()
    return others[same]


def telling(vectors: Sequence[Tensor], found: Found) -> list[int]:
    """Indices of the sentences that read something which no earlier one reads: those that fit first, then those with most of it.

    A decoder without learned positions reads the same at every place of a repeated token, so the beginning of a sentence, repeated, fits
    as well as the sentence.
    """
    order: list[int] = []
    covered = vectors[0][:0]
    left = set(range(len(vectors)))
    while left:
        new = {k: _new(vectors[k], covered) for k in left}
        best = min(left, key=lambda k: (not found.fits[k], -new[k], found.distances[k], k))
        left.remove(best)
        if new[best]:
            order.append(best)
            covered = torch.cat([covered, vectors[best]])
    return order


def _new(vectors: Tensor, covered: Tensor) -> int:
    """How many of ``vectors`` are different from each other and from ``covered``."""
    both = torch.cat([covered, vectors])
    apart = torch.cdist(both, both) > SAME * both.norm(dim=1, keepdim=True)
    first = (~apart).int().argmax(1)  # the first vector that each one equals
    return int((first[len(covered) :] == torch.arange(len(covered), len(both), device=both.device)).sum())


def _without_order(spans: Spans, sets: Sequence[Tensor], size: int, *, guess: bool, filler: int) -> Answer:
    """The tokens of each place, in any combination; one sentence of one candidate each is known."""
    rows = [_laid_out(sets, k, size, filler) for k in range(size)]
    sure = False
    if size == 1 and not guess and spans.steps == 1 and not spans.silent and all(len(one) == 1 for one in sets):
        level = next(level for level in spans.tokens if level.reading.by_place or len(sets) == 1)
        vectors = spans.reader.read(rows[0][None], level.reading)[0]
        sure = level.span.chance(vectors) * sum(map(len, sets)) <= CHANCE and explains(level.span, vectors)
    return Answer(torch.stack(rows), torch.tensor([sure] * size, device=rows[0].device), 0.0, sure, 0)


def explains(span: RowSpan, vectors: Tensor) -> bool:
    """Whether nothing is left of the gradient outside the span of ``vectors`` (n, width) but rounding or noise."""
    vectors = vectors * span.scale
    unit = (vectors / vectors.norm(dim=1, keepdim=True)).cpu()  # where a decomposition is quicker
    _, s, v = (one.to(vectors.device) for one in torch.linalg.svd(unit, full_matrices=False))
    basis = v[s > span.rounding * math.sqrt(vectors.numel()) * s[0]].T
    scaled = span.values[:, None] * span.basis.T
    left = scaled - (scaled @ basis) @ basis.T
    largest = float(torch.linalg.matrix_norm(left, 2))
    rounded = math.sqrt(span.width) * span.rounding * float(span.values[0])  # of the vectors themselves
    return largest <= LEFT * (math.sqrt(span.rows) + math.sqrt(span.width) + rounded)


def _padded(ids: Tensor, length: int, filler: int) -> Tensor:
    return torch.cat([ids, ids.new_full((length - len(ids),), filler)])


def _laid_out(sets: Sequence[Tensor], k: int, size: int, filler: int) -> Tensor:
    """Sentence k: a candidate of each place, others at each place if all places have the same, so as many as possible occur."""
    chosen = [
        one[(k + at * size) % len(one)] if len(one) else sets[0].new_tensor(filler) for at, one in enumerate(sets)
    ]
    return torch.stack(chosen)


def stated(limits: Sequence[SpanLimit]) -> tuple[tuple[str, str], ...]:
    """Rows for a table (question, answer)."""
    rows: list[tuple[str, str]] = []
    for limit in limits:
        why = f"width {limit.width}"
        if limit.adapters:
            why += f", adapters with {limit.rows} rows in all"
        if limit.first_step:
            why += ", first step: only what the first factor makes of the inputs is seen"
        if limit.steps > 1:
            why += f", {limit.steps} local steps, each with inputs of its own"
        rows.append((f"{limit.level} from {limit.layer}: at most", f"{limit.most} {limit.counts} ({why})"))
        seen = str(limit.rank) if limit.clear else f"{limit.rank}, and others may be hidden in noise or rounding"
        rows.append((f"{limit.level} from {limit.layer}: directions in this update", seen))
    return tuple(rows)


def _notes(
    spans: Spans, found: Found, answer: Answer, size: int, *, guess: bool, peeled: Peeled | None
) -> tuple[str, ...]:
    sure = int(answer.certified.sum())
    notes = [f"{sure} of {size} sentences are certified exact"]
    if peeled is not None and peeled.ids:
        notes.append(
            f"the batch has more tokens than directions: {len(peeled.ids)} sentences were guessed and their parts subtracted, "
            "the others were looked for in what is left; a best guess"
        )
    if spans.steps > 1:
        notes.append(f"the update sums {spans.steps} local steps, taken at different weights: nothing is certified")
        notes.extend(too_many(limit) for limit in spans.limits if not limit.fits and answer.sentences)
    if guess:
        why = "the gradient is noisy or of low precision" if spans.coarse else "not all sentences are in the span"
        notes.append(f"{why}: the nearest sentences, a best guess")
    if not answer.sentences:
        notes.append("no sentence was put together: only the tokens of each place are known")
        notes.extend(too_many(limit) for limit in spans.limits if not limit.fits)
    elif answer.whole:
        notes.append("the sentences explain every direction of the gradient")
    elif not guess and spans.steps == 1:
        notes.append("the sentences do not explain every direction of the gradient: something is missing")
    if 0 < answer.sentences < size:
        others = "repeated" if peeled is None else "tokens in no order"
        notes.append(f"{answer.sentences} different sentences were found for {size}: the others are {others}")
    if found.crowded or answer.sentences > size:
        notes.append(f"more sentences fit than {size}")
    if spans.silent:
        notes.append(f"{len(spans.silent)} places get no gradient of their own, so their tokens are unknown")
    return tuple(notes)


@example("text_deep")
@checked
def token_spans(*, padding: int | None = None, tries: int = 8) -> TokenSpans:
    """Petrov et al. 2024 (DAGER): the gradient of a linear layer spans what the layer reads, and only a true sentence is in that span.

        ∂l/∂W = Σ_p δ_p z_pᵀ   ⟹   every z_p is in the row space of ∂l/∂W, as long as there are fewer z_p than directions

    The first attention reads each token by itself: every id of the vocabulary is tested, at every place if positions are learned. Layers
    after it read the context: sentences are put together so that what such a layer would read is in the span too. A decoder's
    beginnings are tested one by one, place by place; an encoder's sentences are found by descent (``tries`` starts for each). This covers
    batches, frozen embeddings, tied output layers, learned and rotary positions, and adapters, for a gradient or local steps by SGD.
    ``padding`` is the id that fills short sentences, if the embedding does not name it.

    How far a vector may be outside the span follows from the rounding of the gradient (:mod:`leakgauge.inversion.row_spans`); noise and low
    precision show in the directions that no token can fill. Then the nearest sentences are a guess. What can be recovered is stated before
    (:func:`span_limits`), and each sentence is certified if random vectors would practically never pass in its place.

    Several local steps read inputs at different weights. Those of the first are known, so its inputs are in the span while all steps
    together have fewer than there are directions. Inputs are looked for between the weights before and after. Nothing is certified then.

    A decoder's batch with more tokens than directions is a guess too, as long as its distinct tokens do not fill the first layer: the
    sentences that are nearest to the span are found first and subtracted (:mod:`leakgauge.inversion.peeling`).

    Deviations: the paper sets its tolerances by hand, tests the second attention where here the first layer that reads the context and has
    directions left is taken, searches encoders exhaustively with pruning, and above the width goes on with the strongest directions.

    Ref: DAGER (Petrov et al. 2024), abstract — low rank of attention gradients, span checks of tokens and sequences
    """
    return TokenSpans(labels=infer_labels(), padding=padding, tries=tries)
