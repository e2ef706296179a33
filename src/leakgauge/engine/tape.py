"""Runs a model once for all restarts and notes how each parameter was used.

The candidates of R restarts go through the model as one batch, restarts outermost. Every torch function that the model
calls passes through :class:`Tape`. Where a parameter meets the data there are two ways:

- *tapped*: linear, convolution, normalisation and embedding have a rule (``engine/rules``). The layer runs with its shared
  weight; what entered it and the edge of the graph where its output left are kept, and the gradients follow from those.
- *lifted*: anything else (position embedding, class token, layer scale, relative-position tables, depthwise convolutions,
  reparametrised weights) gets one copy of the parameter per restart, and autograd does the rest. What is computed from
  parameters alone carries such a copy along as its shadow until it meets the data.

A tensor counts as data when it was computed from the candidates, or was expanded from one row to all of them.
Whether a model keeps restarts outermost is not assumed: the caller compares with the reference before it trusts the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from leakgauge.engine.rules import RULES, Use

Function = Callable[..., Any]

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
"""Functions that take a value out of a tensor, most often to decide what is run next."""


class Tape(TorchFunctionMode):
    """Records the uses of the named ``parameters`` while a model runs on ``rows`` restarts of ``batch`` samples."""

    def __init__(self, parameters: Mapping[str, Tensor], *, rows: int, batch: int) -> None:
        super().__init__()
        self.rows, self.batch = rows, batch
        self.names = {id(p): name for name, p in parameters.items()}
        self.uses: list[Use] = []
        self.lifted: dict[str, Tensor] = {}
        self._shadows: dict[int, Tensor] = {}
        self._data: set[int] = set()
        self._alive: list[Any] = list(parameters.values())  # an id is only good while its tensor lives

    # --- what is known about a tensor

    def mark_data(self, value: Any) -> Any:
        for tensor in _tensors(value):
            self._data.add(id(tensor))
            self._alive.append(tensor)
        return value

    def is_data(self, value: Any) -> bool:
        return id(value) in self._data

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
            result = rule(self, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        found = list(_tensors((args, kwargs)))
        parametric = any(self.is_parameter(t) for t in found)
        data = any(self.is_data(t) for t in found)
        if data and func in READING:
            raise RuntimeError("the model looks at values of its data, and a branch may differ between restarts")
        if not parametric:
            result = func(*args, **kwargs)
            return self.mark_data(result) if data or self._spreads(func, args, result) else result
        if data:
            return self._meet(func, args, kwargs)
        result = func(*args, **kwargs)
        if any(True for _ in _tensors(result)):
            return self._follow(func, args, kwargs, result)
        return result

    def _spreads(self, func: Function, args: tuple[Any, ...], result: Any) -> bool:
        """A constant expanded from one row to all of them is data from then on."""
        return (
            func in EXPANDING
            and isinstance(result, Tensor)
            and result.dim() > 0
            and len(result) == self.rows * self.batch
            and (args[0].dim() < result.dim() or len(args[0]) == 1)
        )

    def _follow(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Something computed from parameters alone: its shadow is the same function of their shadows."""
        if func in EXPANDING and self._spreads(func, args, result):
            source = self.shadow(args[0])
            shape = (self.rows, self.batch, *result.shape[1:])
            kept = source if source.dim() == len(shape) else source.unsqueeze(1)
            return self.mark_data(kept.expand(shape).flatten(0, 1))
        shadows = self._mapped(func, args, kwargs)
        for value, shadow in zip(_tensors(result), _tensors(shadows), strict=True):
            self._shadows[id(value)] = shadow
            self._alive.append(value)
        return result

    def _meet(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A parameter without a rule meets the data: broadcast where that is all it takes, else map over the restarts."""
        if func in ELEMENTWISE and not kwargs.get("out"):
            aligned = self._aligned(args)
            if aligned is not None:
                result = func(*aligned, **kwargs).flatten(0, 1)
                return self.mark_data(result)
        if func in INPLACE:
            aligned = self._aligned(args)
            if aligned is not None:
                func(*aligned, **kwargs)
                return args[0]
        result = self._mapped(func, args, kwargs)
        return self.mark_data(_map_tensors(lambda t: t.flatten(0, 1), result))

    def _aligned(self, args: tuple[Any, ...]) -> list[Any] | None:
        """Data as (R, n, …) and shadows as (R, 1, …, …), so that ordinary broadcasting pairs them; None if it cannot."""
        dims = max(t.dim() for t in args if isinstance(t, Tensor) and self.is_data(t))
        out: list[Any] = []
        for value in args:
            if not isinstance(value, Tensor):
                out.append(value)
            elif self.is_data(value):
                if value.dim() != dims:
                    return None
                out.append(value.unflatten(0, (self.rows, -1)))
            elif self.is_parameter(value):
                shadow = self.shadow(value)
                if value.dim() > dims or (value.dim() == dims and len(value) != 1):
                    return None
                inner = value.shape[1:] if value.dim() == dims else value.shape
                out.append(shadow.reshape(self.rows, *[1] * (dims - len(inner)), *inner))
            else:
                out.append(value)
        return out

    def _mapped(self, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``func`` for every restart by itself, through vmap."""
        mapped: list[Tensor] = []

        def per_restart(value: Any) -> Any:
            if self.is_parameter(value):
                mapped.append(self.shadow(value))
            elif self.is_data(value):
                mapped.append(value.unflatten(0, (self.rows, -1)))
            else:
                return value
            return _Slot(len(mapped) - 1)

        holes = _map_tensors(per_restart, (args, kwargs))

        def call(*values: Tensor) -> Any:
            filled_args, filled_kwargs = _fill(holes, values)
            return func(*filled_args, **filled_kwargs)

        return torch.vmap(call, randomness="different")(*mapped)

    # --- helpers of the rules

    def name_of(self, value: Any) -> str | None:
        return self.names.get(id(value)) if value is not None else None

    def tap(self, output: Tensor, make: Callable[[Any], Use]) -> Tensor:
        """Keeps the edge where ``output`` left; later in-place changes of the tensor do not touch it."""
        if not output.requires_grad:  # nothing before it depends on the candidates yet: give the edge a place to be
            output = output.detach().requires_grad_()
        self.uses.append(make(get_gradient_edge(output)))
        return self.mark_data(output)

    def added(self, output: Tensor, bias: Tensor | None, *, dim: int) -> Tensor:
        """``output`` plus a bias that is no plain parameter (or None), spread along ``dim``."""
        if bias is None:
            return output
        shape = [1] * output.dim()
        shape[dim] = -1
        if not self.is_parameter(bias):
            return self.mark_data(output + bias.view(shape))
        shadow = self.shadow(bias).view(self.rows, *shape)
        return self.mark_data((output.unflatten(0, (self.rows, -1)) + shadow).flatten(0, 1))


class _Slot:
    """Marks where a mapped tensor goes back into the arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_map_tensors(change, item) for item in value)
    if isinstance(value, dict):
        return {key: _map_tensors(change, item) for key, item in value.items()}
    return value


def _fill(holes: Any, values: tuple[Tensor, ...]) -> Any:
    if isinstance(holes, _Slot):
        return values[holes.index]
    if isinstance(holes, (tuple, list)):
        return type(holes)(_fill(item, values) for item in holes)
    if isinstance(holes, dict):
        return {key: _fill(item, values) for key, item in holes.items()}
    return holes


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
