"""Whole batches of sentences from the gradients of linear layers, which span what the layers read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from leakgauge.channels import Gradient
from leakgauge.channels.facts import is_weight_update, local_steps, require_gradients, require_no_decay
from leakgauge.core import Observation, Reconstruction, Signal, Tokens, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.core.randomness import private_randomness
from leakgauge.engine import Observed
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none
from leakgauge.inversion.readers import Reading, TextReader, own_ids, text_reader
from leakgauge.inversion.row_spans import RowSpan, row_span
from leakgauge.inversion.sentence_search import Found, by_descent, by_place

CHANCE = 1e-6
"""A sentence is certified if random vectors in place of its inputs would pass with at most this probability, all candidates together."""
ROOMY = 0.25
"""In a decoder the first layer with this share of its directions outside the span is taken; otherwise the one with the most."""
SAME = 1e-4
"""Inputs that differ by less than this share of their length are the same."""
CROWD = 1.25
"""Tokens of the adversary's own batch for each direction that a gradient could have."""
NEARLY = 0.9
"""Such a batch fills at least this share of the possible directions, unless the vocabulary is too small to fill them."""
LEFT = 4.0
"""What the found sentences leave of the gradient may be this many times as large as white noise."""
CHUNK = 512
"""Rows of ids that are read at once."""
ADAPTERS = ("lora_A", "lora_B")
"""What ``peft`` calls the two factors of a low-rank adapter."""
DEEPEST = 3
"""How many layers that read the context are looked at, from the first on."""


@dataclass(frozen=True)
class SpanLimit:
    """What one layer's gradient can tell, known before any candidate is tried.

    ``level`` "tokens": the layer reads each token by itself; "sentences": it reads the context. The layers that read the same input, of
    ``width``, have ``rows`` outputs together (adapters: the sum of their ranks). Their gradient has at most ``attainable`` directions, as a
    larger batch of the adversary's own shows; ``rank`` of them are above rounding or noise in this update. The batch has ``places``.
    ``by_place``: a token has another input at each place. ``adapters``: only adapters are shared. ``first_step``: their second
    factor is zero, so the first has no gradient, and only what the first makes of the input is seen.
    """

    level: Literal["tokens", "sentences"]
    layer: str
    width: int
    rows: int
    attainable: int
    rank: int
    places: int
    by_place: bool
    adapters: bool
    first_step: bool

    @property
    def most(self) -> int:
        """Inputs that can be recovered: fewer than the width, as one direction must be left, and at most as many as the gradient spans."""
        return min(self.width - 1, self.attainable)

    @property
    def counts(self) -> Literal["distinct tokens", "tokens"]:
        """What may not exceed ``most``."""
        return "distinct tokens" if self.level == "tokens" and not self.by_place else "tokens"

    @property
    def fits(self) -> bool:
        """Whether the batch has fewer inputs than its gradient could show."""
        return self.rank < min(self.width, self.attainable)

    @property
    def certain(self) -> bool:
        """Whether any batch of this size fits."""
        return self.places <= self.most


@dataclass(frozen=True, eq=False)
class Level:
    """Layers that read the same, the span of their gradients, and what it can tell."""

    reading: Reading
    span: RowSpan
    limit: SpanLimit


@dataclass(frozen=True, eq=False)
class Spans:
    """What the gradient of a text model spans: one level or more for tokens, at most one for sentences."""

    reader: TextReader
    tokens: tuple[Level, ...]
    sentences: Level | None
    silent: tuple[int, ...]
    """Places that get no gradient of their own in this model, such as the last of a model that predicts the next token."""
    coarse: bool
    """Whether noise or low precision moved the gradient by more than rounding does."""
    limits: tuple[SpanLimit, ...]
    """Of these levels; if none can tell sentences, also the widest of those that could with a smaller batch."""


def span_limits(victim: Victim, seen: Observation, *, seed: int = 0) -> tuple[SpanLimit, ...]:
    """What :func:`token_spans` will be able to tell, layer by layer, before it tries any token. Refuses what it would refuse."""
    return _spans(victim, seen, Observed.check(seen.signal, victim).signal, seed=seed).limits


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
        spans = _spans(victim, seen, signal, seed=seed)
        space = victim.space
        assert isinstance(space, Tokens)
        among, filler = _candidates(victim, signal, size), self._filler(victim)
        sets = token_sets(spans, among, size, guess=False)
        found = self._sentences(spans, sets, size, guess=False, seed=seed)
        answer = _answer(spans, sets, found, size, guess=False, filler=filler)
        guess = not answer.whole and spans.coarse
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
            notes=_notes(spans, sets, found, answer, size, guess=guess),
            stated=stated(spans.limits),
            certified=answer.certified,
        )

    def _sentences(self, spans: Spans, sets: Sequence[Tensor], size: int, *, guess: bool, seed: int) -> Found:
        level = spans.sentences
        if level is None:
            return Found()
        if spans.reader.causal:
            return by_place(spans.reader, level.reading, level.span, sets, size, guess=guess)
        return by_descent(spans.reader, level.reading, level.span, sets, size, tries=self.tries, seed=seed)

    def _filler(self, victim: Victim) -> int:
        known = _padding(victim) if self.padding is None else self.padding
        return 0 if known is None else known


def _padding(victim: Victim) -> int | None:
    tables = (m for m in victim.model.modules() if isinstance(m, torch.nn.Embedding))
    return next((table.padding_idx for table in tables if table.padding_idx is not None), None)


def _spans(victim: Victim, seen: Observation, signal: Signal, *, seed: int) -> Spans:
    """The levels that can tell tokens and sentences; refuses an update or a model for which there is none."""
    size = batch_size(seen)
    if local_steps(seen.channel, size) > 1:
        raise Inapplicable(
            f"the update sums {local_steps(seen.channel, size)} local steps, taken at different weights, so it spans no one set of inputs"
        )
    require_gradients(seen.channel)
    require_no_decay(seen.channel)
    reader = text_reader(victim, list(signal), seed=seed)
    single = [reading for reading in reader.readings if reading.alone]
    context = [reading for reading in reader.readings if not reading.alone][:DEEPEST]
    ids, own = _own_gradient(victim, 1, seed=seed)
    most = max((min(reading.width, reading.rows) for reading in (*single, *context)), default=0)
    _, crowd = _own_gradient(victim, math.ceil(CROWD * most / ids.shape[1]), seed=seed)
    alone = [_level(reading, victim, seen, signal, crowd) for reading in single]
    levels = [level for level in alone if level is not None]
    if not levels:
        raise Inapplicable(
            "no layer that reads single tokens shares a gradient: the first attention is fixed, withheld or has none"
        )
    fitting = [level for level in levels if level.limit.fits]
    if not fitting:
        raise Inapplicable(_too_many(max((level.limit for level in levels), key=lambda limit: limit.most)))
    heard = [_heard(reader, level.reading, own, ids) for level in fitting]
    passing = max(heard, key=lambda one: int(one.sum()))  # q of a decoder has no gradient at the first place, v has
    fitting = [level for level, one in zip(fitting, heard, strict=True) if bool((one | ~passing).all())]
    if int(passing.sum()) * 2 < len(passing):
        raise Inapplicable(
            f"the gradient of {fitting[0].reading.module} mixes the places of a sentence: of {len(passing)} tokens of the adversary's "
            f"own only {int(passing.sum())} are in its span, because too few places of the model's output are used"
        )
    chosen, full = None, None
    for reading in context:
        level = _level(reading, victim, seen, signal, crowd)
        if level is None:
            continue
        if not level.limit.fits:
            full = level.limit if full is None or level.limit.most > full.most else full
            continue
        if bool((_heard(reader, reading, own, ids) | ~passing).all()):
            if chosen is None or level.span.free > chosen.span.free:
                chosen = level
            if reader.causal and chosen.span.free >= ROOMY * chosen.span.width:
                break
    silent = tuple((~passing).nonzero().flatten().tolist())
    said = [chosen.limit] if chosen is not None else [full] if full is not None else []
    coarse = any(level.span.coarse for level in (*fitting, *((chosen,) if chosen is not None else ())))
    return Spans(reader, tuple(fitting), chosen, silent, coarse, (*(level.limit for level in fitting), *said))


def _own_gradient(victim: Victim, count: int, *, seed: int) -> tuple[Tensor, Signal]:
    """Sentences of the adversary's own, and their gradient."""
    assert isinstance(victim.space, Tokens)
    ids = victim.to_input(own_ids(victim.space, count, seed=seed))
    with private_randomness(seed, victim.device):
        with torch.no_grad():
            unlikely = victim(ids).argmin(-1)  # so the gradient does not vanish
        return ids, Gradient()(victim, ids, unlikely)


def _level(reading: Reading, victim: Victim, seen: Observation, signal: Signal, crowd: Signal) -> Level | None:
    """None if all gradients of the layers are zero."""
    places = batch_size(seen) * victim.space.shape[0]
    shared = [one for one in reading.readers if bool(signal[one.parameter].any())]
    floors = [_update_rounding(victim, seen, one.parameter) for one in shared]
    span = row_span([one.gradient(signal) for one in shared], inputs=places, floors=floors)
    if span is None:
        return None
    largest = row_span([one.gradient(crowd) for one in shared], inputs=max(span.rows, span.width))
    bound = min(span.rows, span.width)
    attainable = bound if largest is None or largest.rank < NEARLY * bound else largest.rank
    inner = [_is_adapter(one.module) for one in reading.readers]
    limit = SpanLimit(
        level="tokens" if reading.alone else "sentences",
        layer=reading.module,
        width=span.width,
        rows=span.rows,
        attainable=attainable,
        rank=span.rank,
        places=places,
        by_place=reading.by_place,
        adapters=all(inner),
        first_step=all(inner) and _first_step(victim, shared[0].module),
    )
    return Level(reading, span, limit)


def _update_rounding(victim: Victim, seen: Observation, name: str) -> float:
    """Rounding of an entry of a change of weights: that of the weight itself."""
    if not is_weight_update(seen.channel):
        return 0.0
    weight = victim.parameters()[name]
    return torch.finfo(weight.dtype).eps * float(weight.double().norm()) / math.sqrt(weight.numel())


def _is_adapter(module: str) -> bool:
    """Whether it is a factor of a low-rank adapter, by the names of ``peft``."""
    return any(part in ADAPTERS for part in module.split("."))


def _first_step(victim: Victim, module: str) -> bool:
    """Whether this is the second factor of an adapter and still zero."""
    parts = module.split(".")
    if "lora_B" not in parts:
        return False
    return not bool(victim.parameters()[f"{module}.weight"].any())


def _heard(reader: TextReader, reading: Reading, own: Signal, ids: Tensor) -> Tensor:
    """Which places of the adversary's own sentence are in the span of its own gradient, (length,)."""
    span = row_span([one.gradient(own) for one in reading.readers], inputs=ids.numel())
    if span is None or span.saturated:
        return torch.zeros(ids.shape[1], dtype=torch.bool, device=ids.device)
    return span.outside(reader.read(ids, reading)[0]) <= 1


def _too_many(limit: SpanLimit) -> str:
    what = "ranks of the adapters" if limit.adapters and limit.rows < limit.width else "directions"
    return (
        f"the gradient of {limit.layer} fills all {min(limit.width, limit.attainable)} {what}: the batch has as many {limit.counts} "
        "or more, or there is noise"
    )


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
    exact = all(found.fits[k] for k in shown) and not (guess or found.crowded or spans.silent) and len(order) <= size
    whole = exact and explains(level.span, torch.cat([vectors[k] for k in shown]))
    likely = exact and level.span.chance(torch.cat([vectors[k] for k in shown])) * found.tested <= CHANCE
    rows = [_padded(found.ids[k], length, filler) for k in shown]
    sure = [likely and (whole or len(found.ids[k]) == length) for k in shown]
    return Answer(
        torch.stack([rows[k % len(rows)] for k in range(size)]),
        torch.tensor([k < len(sure) and sure[k] for k in range(size)], device=rows[0].device),
        sum(found.distances[k] for k in shown) / (len(shown) * length),
        whole,
        len(order),
    )


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
    if size == 1 and not guess and not spans.silent and all(len(one) == 1 for one in sets):
        level = next(level for level in spans.tokens if level.reading.by_place or len(sets) == 1)
        vectors = spans.reader.read(rows[0][None], level.reading)[0]
        sure = level.span.chance(vectors) * sum(map(len, sets)) <= CHANCE and explains(level.span, vectors)
    return Answer(torch.stack(rows), torch.tensor([sure] * size, device=rows[0].device), 0.0, sure, 0)


def explains(span: RowSpan, vectors: Tensor) -> bool:
    """Whether nothing is left of the gradient outside the span of ``vectors`` (n, width) but rounding or noise."""
    _, s, v = torch.linalg.svd(vectors / vectors.norm(dim=1, keepdim=True), full_matrices=False)
    basis = v[s > span.rounding * math.sqrt(vectors.numel()) * s[0]].T
    scaled = span.values[:, None] * span.basis.T
    left = scaled - (scaled @ basis) @ basis.T
    largest = float(torch.linalg.matrix_norm(left, 2))
    return largest <= LEFT * (math.sqrt(span.rows) + math.sqrt(span.width))


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
        rows.append((f"{limit.level} from {limit.layer}: at most", f"{limit.most} {limit.counts} ({why})"))
        rows.append((f"{limit.level} from {limit.layer}: directions in this update", str(limit.rank)))
    return tuple(rows)


def _notes(
    spans: Spans, sets: Sequence[Tensor], found: Found, answer: Answer, size: int, *, guess: bool
) -> tuple[str, ...]:
    sure = int(answer.certified.sum())
    notes = [f"{sure} of {size} sentences are certified exact"]
    if guess:
        notes.append("the gradient is noisy or of low precision: the nearest sentences, a best guess")
    if not answer.sentences:
        notes.append("no sentence was put together: only the tokens of each place are known")
        notes.extend(_too_many(limit) for limit in spans.limits if not limit.fits)
    elif answer.whole:
        notes.append("the sentences explain every direction of the gradient")
    elif not guess:
        notes.append("the sentences do not explain every direction of the gradient: something is missing")
    if 0 < answer.sentences < size:
        notes.append(f"{answer.sentences} different sentences were found for {size}: the others are repeated")
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
    batches, frozen embeddings, tied output layers, learned and rotary positions, and adapters, for a gradient or one local step.
    ``padding`` is the id that fills short sentences, if the embedding does not name it.

    How far a vector may be outside the span follows from the rounding of the gradient (:mod:`leakgauge.inversion.row_spans`); noise and low
    precision show in the directions that no token can fill. Then the nearest sentences are a guess. What can be recovered is stated before
    (:func:`span_limits`), and each sentence is certified if random vectors would practically never pass in its place.

    Deviations: the paper sets its tolerances by hand, tests the second attention where here the first layer that reads the context and has
    directions left is taken, and searches encoders exhaustively with pruning.

    Ref: DAGER (Petrov et al. 2024), abstract — low rank of attention gradients, span checks of tokens and sequences
    """
    return TokenSpans(labels=infer_labels(), padding=padding, tries=tries)
