"""Cuts after a module by running the model with hooks, for models without a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from leakgauge.errors import Inapplicable
from leakgauge.graphs.counting import count_flops
from leakgauge.graphs.points import EdgeCost, Point, TensorSpec

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Any]

SAME = 1e-4
"""Two outputs are equal if they differ by less than this share of the largest value."""


class _Reached(Exception):
    """Ends a forward pass at the wanted module."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


def _not_called(name: str) -> Inapplicable:
    return Inapplicable(
        f"the module {name} was not called on these samples, because the model's path depends on its input; "
        "cut at a module that every sample passes through"
    )


@contextmanager
def _with_hooks(model: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    handles = [model.get_submodule(name).register_forward_hook(hook) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Edge(nn.Module):
    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        def reached(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            raise _Reached(output)

        with _with_hooks(self.model, {self.name: reached}):
            try:
                self.model(x.clone())
            except _Reached as at:
                return (at.value,)
        raise _not_called(self.name)


class _Cloud(nn.Module):
    """Runs the whole model on a blank input, with the sent tensor in place of the module's own output."""

    def __init__(self, model: nn.Module, name: str, blank: Tensor) -> None:
        super().__init__()
        self.model, self.name, self.blank = model, name, blank

    def forward(self, sent: Tensor) -> Any:
        with _with_hooks(self.model, {self.name: lambda module, inputs, output: sent.clone()}):
            return self.model(self.blank.expand(len(sent), *self.blank.shape[1:]).clone())


@dataclass(frozen=True, eq=False)
class TracedByHooks:
    """Cuts after modules that are called exactly once per input and whose output alone determines the model's result.

    This is tested: the module's output for one input is inserted into a run on another input.
    """

    model: nn.Module
    example: Tensor
    how: str = "module hooks"
    any_batch: bool = True

    @property
    def points(self) -> Mapping[str, Point]:
        return self._points

    @cached_property
    def _points(self) -> dict[str, Point]:
        called, whole = self._run(self.example)
        of_more = self._of_more(called)
        others = [self._run(x)[0] for x in self._other_inputs()]
        found: dict[str, Point] = {}
        for name, outputs in called.items():  # in the order in which the modules finish
            value, more = outputs[0], of_more.get(name, [None])[0]
            always = len(outputs) == 1 and all(len(other.get(name, [])) == 1 for other in others)
            if always and self._sendable(value, more) and self._determines(name, value, whole):
                spec = TensorSpec(name, tuple(value.shape[1:]), value.dtype)
                found[name] = Point(name, (spec,), type(self.model.get_submodule(name)).__name__.lower())
        return found

    def _other_inputs(self) -> list[Tensor]:
        """Inputs of the example's size but with other values, to notice a module that only some inputs reach."""
        rows = [self.example[i : i + 1].expand_as(self.example) for i in range(len(self.example))]
        return [*rows, -self.example, 0 * self.example] if self.example.is_floating_point() else rows

    def _of_more(self, called: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The outputs for twice as many samples, which shows the batch dimension. For a model with a fixed batch size, the first
        dimension of every tensor is taken as the batch."""
        try:
            return self._run(self.example.repeat_interleave(2, 0))[0]
        except (RuntimeError, ValueError):
            return {
                name: [v.repeat_interleave(2, 0) if isinstance(v, Tensor) and v.dim() else v for v in outputs]
                for name, outputs in called.items()
            }

    def _run(self, x: Tensor) -> tuple[dict[str, list[Any]], Any]:
        """The outputs of every module, call by call, and the model's output."""
        called: dict[str, list[Any]] = {}

        def note(name: str) -> Hook:
            return lambda module, inputs, output: called.setdefault(name, []).append(_detach(output))

        names = [name for name, _ in self.model.named_modules() if name]
        with torch.no_grad(), _with_hooks(self.model, {name: note(name) for name in names}):
            whole = self.model(x.clone())
        return called, whole

    def _sendable(self, value: Any, more: Any) -> bool:
        """Whether ``value`` is a tensor with one row per sample; ``more`` is the value for twice as many samples."""
        if not isinstance(value, Tensor) or not isinstance(more, Tensor) or not value.is_floating_point():
            return False
        rows = len(self.example)
        return value.shape[:1] == (rows,) and more.shape == (2 * rows, *value.shape[1:])

    def _determines(self, name: str, value: Tensor, whole: Any) -> bool:
        with torch.no_grad():
            again = self.cloud(name)(value)
        return alike(again, whole)

    def edge(self, name: str) -> nn.Module:
        return _Edge(self.model, name)

    def cloud(self, name: str) -> nn.Module:
        return _Cloud(self.model, name, self.example[-1:].flip(-1) * 0.5)

    def values(self, x: Tensor, names: Sequence[str]) -> dict[str, tuple[Tensor, ...]]:
        found: dict[str, tuple[Tensor, ...]] = {}
        order = list(self.points)
        last = max(names, key=order.index)

        def keep(name: str) -> Hook:
            def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
                found[name] = (output.clone(),)  # a later layer may write into it
                if name == last:
                    raise _Reached(output)

            return hook

        with _with_hooks(self.model, {name: keep(name) for name in names}), suppress(_Reached):
            self.model(x.clone())
        for name in names:
            if name not in found:
                raise _not_called(name)
        return {name: found[name] for name in names}

    def costs(self, x: Tensor) -> dict[str, EdgeCost]:
        found: dict[str, EdgeCost] = {}
        for name in self.points:
            edge = self.edge(name)
            used = _Used(self.model)
            with torch.no_grad(), count_flops() as counter, used:
                edge(x)
            found[name] = EdgeCost(used.count(), counter.get_total_flops() // len(x))
        return found


class _Used(TorchDispatchMode):
    """Records which parameters the operations of a block read."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.sizes = {p.data_ptr(): p.numel() for p in model.parameters()}
        self.seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = (a for a in pytree.tree_leaves((args, kwargs or {})) if isinstance(a, Tensor))
        self.seen.update(tensor.data_ptr() for tensor in tensors)
        return func(*args, **(kwargs or {}))

    def count(self) -> int:
        return sum(size for address, size in self.sizes.items() if address in self.seen)


def alike(a: Any, b: Any) -> bool:
    """Whether two outputs of a model hold the same numbers, up to rounding."""
    ours, theirs = (pytree.tree_leaves(value) for value in (a, b))
    if len(ours) != len(theirs):
        return False
    return all(_near(x, y) for x, y in zip(ours, theirs, strict=True) if isinstance(x, Tensor))


def _near(a: Tensor, b: Any) -> bool:
    if not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    a, b = a.detach(), b.detach()
    scale = float(b.abs().max()) if b.numel() else 0.0
    return bool(((a - b).abs() <= SAME * max(scale, torch.finfo(b.dtype).tiny)).all())


def _detach(output: Any) -> Any:
    return output.clone() if isinstance(output, Tensor) else output
