"""What the gradients of a text model span, layer by layer, and what that can tell, known before any candidate is tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from leakgauge.channels import Gradient
from leakgauge.channels.facts import (
    clients,
    is_weight_update,
    local_steps,
    require_gradients,
    require_no_decay,
    step_size,
)
from leakgauge.core import Observation, Signal, Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import Inapplicable
from leakgauge.inversion.labels import batch_size
from leakgauge.inversion.readers import Layout, Reading, TextReader, find_layout, own_ids
from leakgauge.inversion.row_spans import CLEAR, RowSpan, row_span

ROOMY = 0.25
"""In a decoder the first layer with this share of its directions outside the span is taken; otherwise the one with the most."""
CROWD = 1.25
"""Tokens of the adversary's own batch for each direction that a gradient could have."""
NEARLY = 0.9
"""Such a batch fills at least this share of the possible directions, unless the vocabulary is too small to fill them."""
ADAPTERS = ("lora_A", "lora_B")
"""What ``peft`` calls the two factors of a low-rank adapter."""
PLACES = 512
"""Places of the adversary's own sentences that are run at once."""
DEEPEST = 3
"""How many layers that read the context are looked at, from the first on."""


@dataclass(frozen=True)
class SpanLimit:
    """What one layer's gradient can tell, known before any candidate is tried.

    ``level`` "tokens": the layer reads each token by itself; "sentences": it reads the context. The layers that read the same input, of
    ``width``, have ``rows`` outputs together (adapters: the sum of their ranks). Their gradient has at most ``attainable`` directions, as a
    larger batch of the adversary's own shows; ``rank`` of them are above rounding or noise in this update, and ``filled`` may be. The
    weakest of these is ``weakest`` times as large as the noise; if it is not ``clear`` of it, other directions may be hidden in it. The
    batch has ``places``, counted again in each of the client's ``steps``. ``by_place``: a token has another input at each place.
    ``adapters``: only adapters are shared. ``first_step``: their second factor is zero, so the first has no gradient, and only what the
    first makes of the input is seen.
    """

    level: Literal["tokens", "sentences"]
    layer: str
    width: int
    rows: int
    attainable: int
    rank: int
    filled: int
    weakest: float
    clear: bool
    places: int
    by_place: bool
    adapters: bool
    first_step: bool
    steps: int

    @property
    def most(self) -> int:
        """Inputs that can be recovered: fewer than the width, as one direction must be left, and at most as many as the gradient spans."""
        return min(self.width - 1, self.attainable)

    @property
    def counts(self) -> Literal["distinct tokens", "tokens"]:
        """What may not exceed ``most``."""
        return "distinct tokens" if self.level == "tokens" and not self.by_place else "tokens"

    @property
    def room(self) -> bool:
        """Whether the gradient has directions that no input of the batch fills."""
        return self.filled < min(self.width, self.attainable)

    @property
    def fits(self) -> bool:
        """Whether the gradient shows every input of the batch: there is room for others, and noise hides none."""
        return self.room and self.clear

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
    """What the gradient of a text model spans: one level or more for tokens, at most one for sentences.

    ``silent`` are places that get no gradient of their own in this model, such as the last of a model that predicts the next token.
    ``ends_heard``: all places of a sentence that ends before them do. ``coarse``: noise or low precision moved the gradient by more than
    rounding does. ``limits`` are of these levels; if none can tell sentences, also the widest of those that could with a smaller batch.
    ``context`` are the readings that may tell sentences, ``crowd`` is the gradient of a batch that fills them. The client took ``steps``.
    """

    reader: TextReader
    tokens: tuple[Level, ...]
    sentences: Level | None
    silent: tuple[int, ...]
    ends_heard: bool
    coarse: bool
    limits: tuple[SpanLimit, ...]
    context: tuple[Reading, ...]
    crowd: Signal
    steps: int

    def hears_all(self, length: int) -> bool:
        """Whether every token of a sentence of which ``length`` were found got a gradient."""
        return not self.silent or (self.ends_heard and length < min(self.silent))


@dataclass(frozen=True, eq=False)
class Probe:
    """What the adversary finds out about a model with sentences of its own, whatever the client sends.

    ``heard`` are the places of its own sentence that are in the span of that sentence's gradient, by reading. ``crowd`` is the gradient of
    a batch with more tokens than directions.
    """

    layout: Layout
    heard: dict[str, Tensor]
    ends_heard: bool
    crowd: Signal


_PROBED: WeakKeyDictionary[Victim, dict[tuple[int, int | None, tuple[str, ...]], Probe]] = WeakKeyDictionary()
"""A probe takes several gradients of the whole model, and is the same for every update. It holds nothing of the victim itself."""


def find_spans(victim: Victim, seen: Observation, signal: Signal, *, padding: int | None, seed: int) -> Spans:
    """The levels that can tell tokens and sentences; refuses an update or a model for which there is none."""
    require_gradients(seen.channel)
    require_no_decay(seen.channel)
    steps = local_steps(seen.channel, batch_size(seen))
    probe = _probe(victim, tuple(signal), padding=padding, seed=seed)
    single, context = _first_readings(probe.layout)
    alone = [level_of(reading, victim, seen, signal, probe.crowd) for reading in single]
    levels = [level for level in alone if level is not None]
    if not levels:
        raise Inapplicable(
            "no layer that reads single tokens shares a gradient: the first attention is fixed, withheld or has none"
        )
    fitting = [level for level in levels if level.limit.room]
    if not fitting:
        raise Inapplicable(too_many(max((level.limit for level in levels), key=lambda limit: limit.most)))
    heard = [probe.heard[level.reading.module] for level in fitting]
    passing = max(heard, key=lambda one: int(one.sum()))  # q of a decoder has no gradient at the first place, v has
    fitting = [level for level, one in zip(fitting, heard, strict=True) if bool((one | ~passing).all())]
    if int(passing.sum()) * 2 < len(passing):
        raise Inapplicable(
            f"the gradient of {fitting[0].reading.module} mixes the places of a sentence: of {len(passing)} tokens of the adversary's "
            f"own only {int(passing.sum())} are in its span, because too few places of the model's output are used"
        )
    heard_context = [reading for reading in context if bool((probe.heard[reading.module] | ~passing).all())]
    chosen, full = sentence_level(heard_context, victim, seen, signal, probe.crowd, causal=probe.layout.causal)
    if chosen is None and len(heard_context) < len(
        context
    ):  # what a smaller batch could tell is stated of the others too
        _, full = sentence_level(context, victim, seen, signal, probe.crowd, causal=probe.layout.causal)
    silent = tuple((~passing).nonzero().flatten().tolist())
    said = [one.limit for one in (chosen or full,) if one is not None]
    coarse = any(level.span.coarse for level in (*fitting, *((chosen,) if chosen is not None else ())))
    limits = (*(level.limit for level in fitting), *said)
    return Spans(
        _reader(victim, probe.layout, signal, steps, [*fitting, *([chosen] if chosen is not None else [])]),
        tuple(fitting),
        chosen,
        silent,
        probe.ends_heard,
        coarse,
        limits,
        tuple(heard_context),
        probe.crowd,
        steps,
    )


def sentence_level(
    context: Sequence[Reading],
    victim: Victim,
    seen: Observation,
    signal: Signal,
    crowd: Signal,
    *,
    causal: bool,
    sent: Signal | None = None,
) -> tuple[Level | None, Level | None]:
    """The level that tells sentences, if one of them has room, and the widest of those that are full before it.

    If ``signal`` is what is left of an update, ``sent`` is the update.
    """
    chosen, full = None, None
    for reading in context:
        level = level_of(reading, victim, seen, signal, crowd, sent=sent)
        if level is None:
            continue
        if not level.limit.room:
            full = level if full is None or level.limit.most > full.limit.most else full
            continue
        if chosen is None or level.span.free > chosen.span.free:
            chosen = level
        if causal and chosen.span.free >= ROOMY * chosen.span.width:
            break
    return chosen, full


def _reader(victim: Victim, layout: Layout, signal: Signal, steps: int, levels: Sequence[Level]) -> TextReader:
    """At the weights before the client's steps; if it took several, also after them: what it read in each is near the line between both.

    The inputs of the first step are those at the weights that everybody knows. Those of K steps span at most K times as many directions.
    """
    if steps == 1:
        return TextReader(victim, layout)
    after = replace(victim)  # a copy of the model
    with torch.no_grad():
        for name, parameter in after.model.named_parameters():
            if name in signal:
                parameter += signal[name]
    spans = {level.reading.module: level.span for level in levels}
    return TextReader(victim, layout, moved=TextReader(after, layout), spans=spans)


def _first_readings(layout: Layout) -> tuple[list[Reading], list[Reading]]:
    """Those that read single tokens, and the first of those that read the context."""
    context = [reading for reading in layout.readings if not reading.alone]
    return [reading for reading in layout.readings if reading.alone], context[:DEEPEST]


def _probe(victim: Victim, names: tuple[str, ...], *, padding: int | None, seed: int) -> Probe:
    known, key = _PROBED.setdefault(victim, {}), (seed, padding, names)
    if key not in known:
        known[key] = _made_probe(victim, names, padding=padding, seed=seed)
    return known[key]


def _made_probe(victim: Victim, names: tuple[str, ...], *, padding: int | None, seed: int) -> Probe:
    layout = find_layout(victim, names, seed=seed)
    reader = TextReader(victim, layout)
    assert isinstance(victim.space, Tokens)  # others are refused
    readings = [reading for group in _first_readings(layout) for reading in group]
    used = {one.parameter for reading in readings for one in reading.readers}
    ids = victim.to_input(own_ids(victim.space, 1, seed=seed))
    fewest = min((min(reading.width, reading.rows) for reading in readings), default=0)
    some = (
        ids[:, : fewest // 2] if layout.cuts and 4 <= fewest <= ids.shape[1] else ids
    )  # a long one would fill the span
    own = _own_gradient(victim, some, used, seed=seed)
    heard = {reading.module: _at_length(_heard(reader, reading, own, some), ids.shape[1]) for reading in readings}
    ends_heard = False
    if padding is not None and victim.space.length > 2:
        text = some.shape[1] // 2
        short = ids.clone()
        short[:, text:] = padding
        gradient = _own_gradient(victim, short, used, seed=seed)
        ends_heard = any(bool(_heard(reader, reading, gradient, short[:, :text]).all()) for reading in readings)
    most = max((min(reading.width, reading.rows) for reading in readings), default=0)
    many = victim.to_input(own_ids(victim.space, math.ceil(CROWD * most / ids.shape[1]), seed=seed))
    return Probe(layout, heard, ends_heard, _own_gradient(victim, many, used, seed=seed))


def _at_length(heard: Tensor, length: int) -> Tensor:
    """What holds for the places of a shorter sentence, for one of ``length``: its last place is the last, those added are as before it."""
    return torch.cat([heard[:-1], heard[-2:-1].expand(length - len(heard)), heard[-1:]])


def _own_gradient(victim: Victim, ids: Tensor, used: set[str], *, seed: int) -> Signal:
    """The mean gradient of the adversary's own sentences, for the parameters in ``used``, from a few sentences at a time."""
    space, summed = victim.space, dict[str, Tensor]()
    assert isinstance(space, Tokens)
    for part in ids.split(max(1, PLACES // ids.shape[1])):
        with private_randomness(seed, victim.device):
            with torch.no_grad():
                scores = victim(part)
            predicts = scores.shape == (*part.shape, space.vocab)
            targets = part if predicts else scores.argmin(-1)  # an unlikely class, so the gradient does not vanish
            found = Gradient()(victim, part, targets)
        for name in used:
            summed[name] = summed.get(name, 0.0) + found[name] * (len(part) / len(ids))
    return summed


def level_of(
    reading: Reading, victim: Victim, seen: Observation, signal: Signal, crowd: Signal, *, sent: Signal | None = None
) -> Level | None:
    """None if all gradients of the layers are zero. If ``signal`` is what is left of an update, ``sent`` is the update."""
    size = batch_size(seen)
    steps = local_steps(seen.channel, size)  # each reads inputs of its own, at other weights
    places = victim.space.shape[0] * (
        size if steps == 1 else steps * step_size(seen.channel, size) * clients(seen.channel)
    )
    shared = [one for one in reading.readers if bool(signal[one.parameter].any())]
    floors = [_update_rounding(victim, seen, one.parameter) for one in shared]
    before = None if sent is None else [one.gradient(sent) for one in shared]
    span = row_span([one.gradient(signal) for one in shared], inputs=places, floors=floors, sent=before)
    if span is None:
        return None
    largest = row_span([one.gradient(crowd) for one in shared], inputs=None)
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
        filled=span.filled,
        weakest=span.weakest,
        clear=span.clear,
        places=places,
        by_place=reading.by_place,
        adapters=all(inner),
        first_step=all(inner) and _first_step(victim, shared[0].module),
        steps=steps,
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


def too_many(limit: SpanLimit) -> str:
    """Why the limit does not fit."""
    if limit.room:
        return (
            f"the weakest of the {limit.rank} directions of {limit.layer} is only {limit.weakest:.1f} times as large as the noise, so "
            f"others may be hidden in it (they are not if it is {CLEAR:g} times as large)"
        )
    what = "ranks of the adapters" if limit.adapters and limit.rows < limit.width else "directions"
    return (
        f"the gradient of {limit.layer} fills all {min(limit.width, limit.attainable)} {what}: the batch has as many {limit.counts} "
        "or more, or there is noise"
    )
