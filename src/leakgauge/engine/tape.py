"""Runs a model once for all restarts and records how each parameter was used.

The candidates of R restarts go through the model as one batch, restarts outermost. Every torch function that the model
calls passes through :class:`Tape`. There are two ways to handle a parameter that meets the data:

- *tapped*: linear, convolution, normalisation and embedding have a rule (``engine/rules``). The layer runs with its shared
  weight; its input and the graph edge of its output are kept, and the gradients follow from those.
- *lifted*: anything else (position embedding, class token, layer scale, relative-position tables, depthwise convolutions,
  reparametrised weights) gets one copy of the parameter per restart, and autograd does the rest. A value computed from
  parameters only carries such a copy along as its shadow until it meets the data.

A tensor counts as data if it was computed from the candidates, or expanded from one row to all of them. The dimension of the
samples is tracked (:func:`axes_after`) as far as possible: most models keep them first, attention with positions first moves them. None
of this is trusted blindly: the caller compares with the reference before using the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from leakgauge.engine.rules import LEADING, RULES, Use


class Slot:
    """Marks where a tensor belongs."""

    def __init__(self, index: int) -> None:
        self.index = index


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in ``value``, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """``value`` with each tensor changed, in order, and everything else kept."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(change, item) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(change, item) for key, item in value.items()}
    return value


def fill(holes: Any, values: tuple[Tensor, ...]) -> Any:
    """``holes`` with a tensor in each slot."""
    if isinstance(holes, Slot):
        return values[holes.index]
    if isinstance(holes, (tuple, list)):
        return type(holes)(fill(item, values) for item in holes)
    if isinstance(holes, dict):
        return {key: fill(item, values) for key, item in holes.items()}
    return holes


Function = Callable[..., Any]

MANY = 1_000_003
"""Number of samples in a meta tensor; no other dimension has this size."""

_PROPERTIES: list[Function] = [getattr(Tensor, name).__get__ for name in ("T", "mT")]
MOVING: set[Function] = {
    torch.transpose, torch.permute, torch.swapaxes, torch.swapdims, torch.movedim, torch.moveaxis, torch.t,
    Tensor.transpose, Tensor.permute, Tensor.swapaxes, Tensor.swapdims, Tensor.movedim, Tensor.moveaxis, Tensor.t,
    *_PROPERTIES, torch.unsqueeze, Tensor.unsqueeze, torch.stack, torch.einsum,
}  # fmt: skip
"""Functions that move the first dimension, possibly without a change of shape if sizes happen to agree."""


def axes_after(
    func: Function, args: Any, kwargs: Any, result: Any, axis_of: Callable[[Any], int | None]
) -> Iterable[int]:
    """The sample dimension of each tensor of ``result = func(*args, **kwargs)``; ``axis_of`` is None for a tensor without samples.

    A result of the same shape keeps the dimension. Otherwise the function runs on meta tensors with another number of samples,
    and the dimension of that size in the result is the answer.
    """
    data = [(t.shape, axis) for t in tensors((args, kwargs)) if (axis := axis_of(t)) is not None]
    if func not in MOVING:
        if not any(axis for _, axis in data):
            return repeat(0)
        made = [t.shape for t in tensors(result)]
        kept = [[axis for shape, axis in data if shape == one] for one in made]
        if all(kept):
            return [max(axes) for axes in kept]
    return _ask_torch(func, args, kwargs, axis_of) or repeat(0)


def _ask_torch(func: Function, args: Any, kwargs: Any, axis_of: Callable[[Any], int | None]) -> list[int]:
    def valueless(tensor: Tensor) -> Tensor:
        axis = axis_of(tensor)
        shape = [MANY if d == axis else size for d, size in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    try:
        with torch.no_grad():
            given, named = map_tensors(valueless, (args, kwargs))
            found = [t.shape for t in tensors(func(*given, **named))]
    except (RuntimeError, ValueError, TypeError, IndexError):  # for example, sizes were given as numbers
        return []
    return [shape.index(MANY) if MANY in shape else 0 for shape in found]


READING: set[Function] = {
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    Tensor.equal,
    torch.equal,
    Tensor.allclose,
    torch.allclose,
    Tensor.is_nonzero,
    torch.is_nonzero,
}
"""Functions that read a value from a tensor, usually to decide what to run next."""


class Tape(TorchFunctionMode):
    """Records the uses of the named ``parameters`` while a model runs on ``rows`` restarts of ``batch`` samples."""

    def __init__(self, parameters: Mapping[str, Tensor], *, rows: int, batch: int) -> None:
        super().__init__()
        self.rows, self.batch = rows, batch
        self.names = {id(p): name for name, p in parameters.items()}
        self.uses: list[Use] = []
        self.lifted: dict[str, Tensor] = {}
        self._shadows: dict[int, Tensor] = {}
        self._data: dict[int, int] = {}
        self._alive: list[Any] = list(parameters.values())  # an id is only valid while its tensor lives

    # --- what is known about a tensor

    def mark_data(self, value: Any, axes: Iterable[int] = repeat(0)) -> Any:
        """``axes`` are the sample dimensions of the tensors in ``value``."""
        for tensor, axis in zip(tensors(value), axes, strict=False):
            self._data[id(tensor)] = axis
            self._alive.append(tensor)
        return value

    def is_data(self, value: Any) -> bool:
        return id(value) in self._data

    def axis(self, value: Any) -> int | None:
        """The sample dimension of data; None for anything else."""
        return self._data.get(id(value))

    def split(self, value: Tensor) -> Tensor:
        """Data split by restart, (R, *shape), with the samples of each in the same dimension."""
        axis = self.axis(value) or 0
        return value.unflatten(axis, (self.rows, -1)).movedim(axis, 0)

    def is_parameter(self, value: Any) -> bool:
        return id(value) in self._shadows or id(value) in self.names

    def shadow(self, value: Tensor) -> Tensor:
        """The per-restart copy (R, *shape) of a parameter or of something computed from parameters."""
        if id(value) not in self._shadows:
            name = self.names[id(value)]
            copy = value.detach().expand(self.rows, *value.shape).clone().requires_grad_()
            self.lifted[name] = self._shadows[id(value)] = copy
        return self._shadows[id(value)]

    # --- what happens at each function the model calls

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = RULES.get(func)
        if rule is not None:
            result = self._by_rule(rule, func, args, kwargs)
            if result is not NotImplemented:
                return result
        found = list(tensors((args, kwargs)))
        parametric = any(self.is_parameter(t) for t in found)
        data = any(self.is_data(t) for t in found)
        if data and func in READING:
            raise RuntimeError("the model reads values of its data, so a branch may differ between restarts")
        if not parametric:
            result = func(*args, **kwargs)
            if data:
                return self.mark_data(result, axes_after(func, args, kwargs, result, self.axis))
            return self.mark_data(result) if self._spreads(func, args, result) else result
        if data:
            return self._meet(func, args, kwargs)
        result = func(*args, **kwargs)
        if any(True for _ in tensors(result)):
            return self._follow(func, args, kwargs, result)
        return result

    def _by_rule(self, rule: Function, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Rules expect samples first. If they are elsewhere, they are moved there and back, or the rule does not apply."""
        axis = max((self.axis(t) or 0 for t in tensors((args, kwargs))), default=0)
        if not axis or func is F.multi_head_attention_forward:
            return rule(self, func, *args, **kwargs)
        if func not in LEADING:
            return NotImplemented

        def first(value: Tensor) -> Tensor:
            return self.mark_data(value.movedim(axis, 0)) if self.axis(value) == axis else value

        moved_args, moved_kwargs = map_tensors(first, (args, kwargs))
        result = rule(self, func, *moved_args, **moved_kwargs)
        return result if result is NotImplemented else self.mark_data(result.movedim(0, axis), (axis,))

    def _spreads(self, func: Function, args: tuple[Any, ...], result: Any) -> bool:
        """Whether a constant was expanded from one row to all of them; then it is data from here on."""
        return (
            func in EXPANDING
            and isinstance(result, Tensor)
            and result.dim() > 0
            and len(result) == self.rows * self.batch
            and (args[0].dim() < result.dim() or len(args[0]) == 1)
        )

    def _follow(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """A value computed from parameters only: its shadow is the same function of their shadows."""
        if func in EXPANDING and self._spreads(func, args, result):
            source = self.shadow(args[0])
            shape = (self.rows, self.batch, *result.shape[1:])
            kept = source if source.dim() == len(shape) else source.unsqueeze(1)
            return self.mark_data(kept.expand(shape).flatten(0, 1))
        if func in ELEMENTWISE and self._spread_by_constant(args):
            return self._meet(func, args, kwargs)
        shadows = self._map(func, args, kwargs)
        for value, shadow in zip(tensors(result), tensors(shadows), strict=True):
            self._shadows[id(value)] = shadow
            self._alive.append(value)
        return result

    def _spread_by_constant(self, args: tuple[Any, ...]) -> bool:
        """Whether a constant (samples, positions, width) spreads a parameter to all samples, as CLIP's class embedding does; then it
        becomes data."""
        of_all = [
            t for t in args if isinstance(t, Tensor) and not self.is_parameter(t)
            and t.dim() > 2 and len(t) == self.rows * self.batch
        ]  # fmt: skip
        if not of_all or any(self.is_parameter(t) and t.dim() > 2 and len(t) > 1 for t in args):
            return False
        self.mark_data(of_all)
        return True

    def _meet(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A parameter without a rule meets the data: broadcast if that is enough, else map over the restarts."""
        if func in ELEMENTWISE and not kwargs.get("out"):
            aligned = self._align(args)
            if aligned is not None:
                values, axis = aligned
                return self._join(func(*values, **kwargs), (axis,))
        if func in INPLACE:
            aligned = self._align(args)
            if aligned is not None:
                func(*aligned[0], **kwargs)
                return args[0]
        result = self._map(func, args, kwargs)
        return self._join(result, axes_after(func, args, kwargs, result, self.axis))

    def _join(self, value: Any, axes: Iterable[int]) -> Any:
        """Joins what :meth:`split` separated back into data."""
        of_each = iter(axes)

        def whole(tensor: Tensor) -> Tensor:
            axis = next(of_each)
            return self.mark_data(tensor.movedim(0, axis).flatten(axis, axis + 1), (axis,))

        return map_tensors(whole, value)

    def _align(self, args: tuple[Any, ...]) -> tuple[list[Any], int] | None:
        """Data split by restart and shadows (R, 1, …, …) that ordinary broadcasting can pair, and the dimension of the samples; None
        if that is impossible.
        """
        data = [t for t in args if isinstance(t, Tensor) and self.is_data(t)]
        dims, axis = max(t.dim() for t in data), self.axis(data[0]) or 0
        if any(t.dim() != dims or self.axis(t) != axis for t in data):
            return None
        out: list[Any] = []
        for value in args:
            if not isinstance(value, Tensor):
                out.append(value)
            elif self.is_data(value):
                out.append(self.split(value))
            elif self.is_parameter(value):
                if value.dim() > dims:
                    return None
                out.append(self.shadow(value).reshape(self.rows, *[1] * (dims - value.dim()), *value.shape))
            else:
                out.append(value)
        return out, axis

    def _map(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``func`` for each restart separately, through vmap."""
        mapped: list[Tensor] = []
        made: list[Any] = []

        def per_restart(value: Any) -> Any:
            if self.is_parameter(value):
                mapped.append(self.shadow(value))
            elif self.is_data(value):
                mapped.append(self.split(value))
            else:
                return value
            return Slot(len(mapped) - 1)

        holes = map_tensors(per_restart, (args, kwargs))

        def call(*values: Tensor) -> tuple[Tensor, ...]:
            filled_args, filled_kwargs = fill(holes, values)
            result = func(*filled_args, **filled_kwargs)
            number = count()
            made.append(map_tensors(lambda _: Slot(next(number)), result))  # besides tensors there may be None
            return tuple(tensors(result))

        found = torch.vmap(call, randomness="different")(*mapped)
        return fill(made[0], found)

    # --- helpers of the rules

    def name_of(self, value: Any) -> str | None:
        return self.names.get(id(value)) if value is not None else None

    def tap(self, output: Tensor, make: Callable[[Any], Use]) -> Tensor:
        """Keeps the graph edge of ``output``; later in-place changes of the tensor do not affect it."""
        if not output.requires_grad:  # nothing before it depends on the candidates, so create an edge
            output = output.detach().requires_grad_()
        self.uses.append(make(get_gradient_edge(output)))
        return self.mark_data(output)

    def add_bias(self, output: Tensor, bias: Tensor | None, *, dim: int) -> Tensor:
        """``output`` plus a bias that is not a plain parameter (or None), along ``dim``."""
        if bias is None:
            return output
        shape = [1] * output.dim()
        shape[dim] = -1
        if not self.is_parameter(bias):
            return self.mark_data(output + bias.view(shape))
        shadow = self.shadow(bias).view(self.rows, *shape)
        return self.mark_data((output.unflatten(0, (self.rows, -1)) + shadow).flatten(0, 1))


EXPANDING: set[Function] = {
    Tensor.expand,
    Tensor.expand_as,
    Tensor.repeat,
    torch.broadcast_to,
    Tensor.broadcast_to,
    torch.tile,
}

ELEMENTWISE: set[Function] = {
    torch.add, torch.sub, torch.mul, torch.div, torch.true_divide,
    Tensor.add, Tensor.sub, Tensor.mul, Tensor.div, Tensor.true_divide,
    Tensor.__add__, Tensor.__radd__, Tensor.__sub__, Tensor.__rsub__, Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__,
    torch.pow, Tensor.pow, Tensor.__pow__, torch.maximum, torch.minimum,
}  # fmt: skip
INPLACE: set[Function] = {
    Tensor.add_,
    Tensor.sub_,
    Tensor.mul_,
    Tensor.div_,
    Tensor.__iadd__,
    Tensor.__isub__,
    Tensor.__imul__,
}
