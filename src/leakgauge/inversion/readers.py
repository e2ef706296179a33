"""Linear layers of a text model in the order in which they run, and what each of them reads for given ids.

The gradient of a layer's weight spans its inputs. Layers before the first attention read a function of one token and its place; all
later ones read the context too. Which layers these are is found by running the model on ids of the adversary's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from leakgauge.core import Signal, Tokens, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.core.running import output_at
from leakgauge.errors import Inapplicable
from leakgauge.inversion.row_spans import RowSpan
from leakgauge.inversion.text_tables import token_space

SAME = 1e-4
"""Inputs that differ by less than this share of their length are the same."""
COLUMNS = "Conv1D"
"""GPT-2's linear layer in transformers, with a weight of shape (inputs, outputs)."""
NUMBERS = 2**23
"""Numbers that one pass may hold in the inputs that are read (64 MiB)."""
UNABLE = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)
"""What a model's own code may raise if it takes no shorter sentences, or no candidates beside each other."""
BESIDE = 1024
"""Candidates for one place that are read beside each other."""


@runtime_checkable
class Continues(Protocol):
    """A decoder that takes candidates for the next token with what it kept of those before: ``model(ids, memory, fill)``.

    With ``fill`` it keeps beginnings (n, k) in the memory. Without, ``ids`` (n, candidates) are all read at place k, each by itself.
    """

    @property
    def continues(self) -> bool: ...

    def memory(self, of: Any = None) -> Any:
        """Empty, or a copy of another one."""
        ...


@dataclass(frozen=True)
class Reader:
    """One linear layer: its module, the parameter that holds its weight, and whether an input is a row of it."""

    module: str
    parameter: str
    in_rows: bool

    def gradient(self, signal: Signal) -> Tensor:
        """(outputs, inputs)"""
        found = signal[self.parameter]
        return found.T if self.in_rows else found


@dataclass(frozen=True)
class Reading:
    """Layers that read the same input, such as q, k and v of one attention.

    ``rows`` counts those of all their gradients: outputs of the layers, or ranks of adapters. ``alone``: the input depends on one token
    and its place only. ``by_place``: it depends on the place.
    """

    readers: tuple[Reader, ...]
    width: int
    rows: int
    alone: bool
    by_place: bool

    @property
    def module(self) -> str:
        return self.readers[0].module


@dataclass(frozen=True)
class Layout:
    """What a text model reads, found by running it: its readings, in the order in which they run.

    ``causal``: what it reads at a place depends on the tokens up to it only. ``cuts``: sentences may be shorter than the model's length.
    ``continues``: it is a :class:`Continues` that reads the same if it goes on from a memory.
    """

    readings: tuple[Reading, ...]
    causal: bool
    cuts: bool
    continues: bool = False


@dataclass(frozen=True, eq=False)
class TextReader:
    """A way to read the layers of a text model for any ids.

    If the client took several steps, ``moved`` reads at the weights after them. Then each input is the point of the line between both that
    is nearest to the span of its layer, by name in ``spans``.
    """

    victim: Victim
    layout: Layout
    moved: TextReader | None = None
    spans: Mapping[str, RowSpan] = field(default_factory=dict)

    def read(self, ids: Tensor, reading: Reading, *, last: bool = False) -> Tensor:
        """Inputs (n, length, width) of a reading for ``ids`` (n, length), in float64; with ``last`` those of the last place, (n, width)."""
        found = self._read(ids, reading, last=last)
        if self.moved is None or reading.module not in self.spans:
            return found
        return self.spans[reading.module].nearest(found, self.moved.read(ids, reading, last=last))

    def _read(self, ids: Tensor, reading: Reading, *, last: bool) -> Tensor:
        length, found = ids.shape[1], []
        if not self.layout.cuts:
            ids = torch.nn.functional.pad(ids, (0, self.victim.space.shape[0] - length))
        for part in ids.split(max(1, NUMBERS // (ids.shape[1] * reading.width))):
            seen = inputs_of(self.victim, part, [reading.module])[reading.module]
            found.append((seen[:, length - 1] if last else seen[:, :length]).double())
        return torch.cat(found)

    def read_next(self, starts: Tensor, candidates: Tensor, reading: Reading) -> Iterator[Tensor]:
        """Inputs of a reading at the place after each of ``starts`` (m, k), for each of ``candidates`` (n,), in parts of (·, width).

        All candidates of the first start come first. A model that continues runs the starts once, and candidates beside each other.
        """
        found = self._read_next(starts, candidates, reading)
        if self.moved is None or reading.module not in self.spans:
            yield from found
            return
        for part, moved in zip(found, self.moved.read_next(starts, candidates, reading), strict=True):
            yield self.spans[reading.module].nearest(part, moved)

    def _read_next(self, starts: Tensor, candidates: Tensor, reading: Reading) -> Iterator[Tensor]:
        if len(candidates) == 0:
            return
        if not self.layout.continues or starts.shape[1] == 0:
            tried = torch.cat(
                [starts.repeat_interleave(len(candidates), 0), candidates.repeat(len(starts))[:, None]], 1
            )
            for part in tried.split(max(1, NUMBERS // (tried.shape[1] * reading.width))):
                yield self._read(part, reading, last=True)
            return
        model: Any = self.victim.model
        for part in starts.split(max(1, NUMBERS // (len(candidates) * reading.width))):
            memory = model.memory()
            inputs_of(self.victim, part, [reading.module], memory=memory, fill=True)
            found = [
                inputs_of(self.victim, some.expand(len(part), -1), [reading.module], memory=model.memory(memory))
                for some in candidates.split(BESIDE)
            ]
            yield torch.cat([one[reading.module] for one in found], 1).flatten(0, 1).double()


def find_layout(victim: Victim, names: Sequence[str], *, seed: int) -> Layout:
    """Finds what the layers read whose weights are in ``names``, by running the model on ids of the adversary's own."""
    space = token_space(victim)
    layers = _linear_layers(victim, names)
    if not layers:
        raise Inapplicable("no weight of a linear layer is shared, so no inputs can be read")
    ids = own_ids(space, 2, seed=seed)
    first, again = (inputs_of(victim, ids, list(layers), seed=seed + k) for k in (0, 1))
    layers = {name: layer for name, layer in layers.items() if name in first}
    changed = ids.clone()
    changed[1, :-1] = changed[0, :-1]  # the last token keeps its place in another sentence
    swapped = ids.clone()
    swapped[:, -1] = ids.flip(0)[:, -1]
    shifted = ids.roll(1, dims=1)
    other, ended, moved = (inputs_of(victim, own, list(layers)) for own in (changed, swapped, shifted))
    groups: list[tuple[str, list[Reader]]] = []
    for name in first:  # in the order in which they ran
        if not _alike(first[name], again[name]):
            raise Inapplicable(
                f"{name} reads other inputs in each pass (dropout), so no candidate can be compared with what the client had"
            )
        group = next((readers for at, readers in groups if _same(first[at], first[name])), None)
        if group is None:
            groups.append((name, [layers[name]]))
        else:
            group.append(layers[name])
    parameters = victim.parameters()
    readings = []
    for name, readers in groups:
        alone = space.length == 1 or _alike(first[name][1, -1], other[name][1, -1])
        by_place = alone and not _alike(first[name], moved[name].roll(-1, dims=1))
        rows = sum(parameters[r.parameter].shape[1 if r.in_rows else 0] for r in readers)
        readings.append(Reading(tuple(readers), first[name].shape[2], rows, alone, by_place))
    later = [one.module for one in readings if not one.alone]
    causal = all(_alike(first[name][:, :-1], ended[name][:, :-1]) for name in later)
    found = Layout(tuple(readings), causal, _takes_shorter(victim, ids, first, readings))
    return replace(found, continues=_goes_on(victim, found, ids))


def _goes_on(victim: Victim, layout: Layout, ids: Tensor) -> bool:
    """Whether several candidates for the last place read the same beside each other as each by itself."""
    model = victim.model
    later = [reading for reading in layout.readings if not reading.alone]
    if not (isinstance(model, Continues) and model.continues and layout.causal and layout.cuts and later):
        return False
    slow, fast = (TextReader(victim, replace(layout, continues=one)) for one in (False, True))
    start, candidates = ids[:1, :-1], ids[:, -1].unique()
    try:
        beside = torch.cat(list(fast.read_next(start, candidates, later[0])))
    except UNABLE:
        return False
    return _same(beside, torch.cat(list(slow.read_next(start, candidates, later[0]))))


def _takes_shorter(victim: Victim, ids: Tensor, whole: Mapping[str, Tensor], readings: Sequence[Reading]) -> bool:
    if ids.shape[1] == 1:
        return True
    module = readings[0].module
    try:
        cut = inputs_of(victim, ids[:, :-1], [module])[module]
    except UNABLE:  # a model of a fixed length
        return False
    return _same(cut, whole[module][:, :-1])


def own_ids(space: Tokens, count: int, *, seed: int) -> Tensor:
    """Sentences of the adversary's own, of distinct tokens as far as the vocabulary has enough."""
    rng = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(space.vocab, generator=rng)[: space.length] for _ in range(count)]
    if len(rows[0]) < space.length:
        return space.start(count, rng)
    return torch.stack(rows)


def inputs_of(
    victim: Victim, ids: Tensor, modules: Sequence[str], *, seed: int = 0, memory: Any = None, fill: bool = False
) -> dict[str, Tensor]:
    """What the named modules read for ``ids``, as far as they read one vector per place and are run once; ends after the last of them.

    ``memory`` is that of a model that :class:`Continues`: ``ids`` are candidates for the next place, or with ``fill`` what it keeps.
    """
    with (
        torch.no_grad(),
        private_randomness(seed, victim.device),
        _recording(victim.model, modules, tuple(ids.shape)) as (seen, calls, ending),
    ):
        try:
            if memory is None:
                victim(victim.to_input(ids))
            else:
                output_at(victim.model, victim.buffers(), victim.to_input(ids), memory, fill)
        except _Enough as end:
            if end is not ending:
                raise
            end.__traceback__ = None  # it refers to this frame: a cycle that would keep all tensors of the pass
    return {name: value for name, value in seen.items() if calls[name] == 1}


class _Enough(Exception):
    """All that was asked for has been read."""


@contextmanager
def _recording(
    model: nn.Module, names: Sequence[str], shape: tuple[int, ...]
) -> Iterator[tuple[dict[str, Tensor], dict[str, int], _Enough]]:
    seen: dict[str, Tensor] = {}
    calls: dict[str, int] = dict.fromkeys(names, 0)
    ending = _Enough()

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            value = inputs[0] if inputs else next(iter(named.values()), None)
            calls[name] += 1
            if isinstance(value, Tensor) and value.dim() == 3 and value.shape[:2] == shape:
                seen[name] = value.detach()
            if len(names) == 1:
                raise ending

        return hook

    handles = [model.get_submodule(name).register_forward_pre_hook(keep(name), with_kwargs=True) for name in names]
    try:
        yield seen, calls, ending
    finally:
        for handle in handles:
            handle.remove()


def _linear_layers(victim: Victim, names: Sequence[str]) -> dict[str, Reader]:
    """Linear layers by module name; one whose weight has another use is left out, because its gradient sums both."""
    shared_as = {id(p): name for name, p in victim.model.named_parameters()}
    uses: dict[int, int] = {}
    for module in victim.model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    found: dict[str, Reader] = {}
    for name, module in victim.model.named_modules():
        in_rows = type(module).__name__ == COLUMNS
        weight = getattr(module, "weight", None)
        if not (in_rows or isinstance(module, nn.Linear)) or not isinstance(weight, Tensor):
            continue
        if shared_as.get(id(weight)) in names and uses[id(weight)] == 1:
            found[name] = Reader(name, shared_as[id(weight)], in_rows)
    return found


def _alike(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).double().norm() <= SAME * b.double().norm())


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and _alike(a, b)
