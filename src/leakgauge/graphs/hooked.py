"""Where no graph can be had: cutting behind a module by watching the model run."""

from __future__ import annotations

import time
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
from leakgauge.graphs.counting import counted_flops
from leakgauge.graphs.points import Cost, Point, TensorSpec

Hook = Callable[[nn.Module, tuple[Any, ...], Any], Any]

SAME = 1e-4
"""Two outputs are the same when they differ by less than this part of the largest value."""


class _Reached(Exception):
    """Ends a forward pass at the wanted module."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value


def _not_called(name: str) -> Inapplicable:
    return Inapplicable(
        f"the module {name} was not called on these samples: the model's path depends on its input, so that it cannot be "
        "cut there; cut at a module that every sample goes through"
    )


@contextmanager
def _hooked(model: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
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

        with _hooked(self.model, {self.name: reached}):
            try:
                self.model(x)
            except _Reached as at:
                return (at.value,)
        raise _not_called(self.name)


class _Cloud(nn.Module):
    """Runs the whole model on a blank input and puts the sent tensor in the place of the module's own output."""

    def __init__(self, model: nn.Module, name: str, blank: Tensor) -> None:
        super().__init__()
        self.model, self.name, self.blank = model, name, blank

    def forward(self, sent: Tensor) -> Any:
        with _hooked(self.model, {self.name: lambda module, inputs, output: sent.clone()}):
            return self.model(self.blank.expand(len(sent), *self.blank.shape[1:]))


@dataclass(frozen=True, eq=False)
class Hooked:
    """Cuts behind modules that are called once on every input tried and whose output, alone, determines what the model returns.

    Whether it does is tried out: the output of the module for one input is put into a run on another input.
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
        """Unlike the example and of its size, so that a module which only some inputs go through is noticed."""
        rows = [self.example[i : i + 1].expand_as(self.example) for i in range(len(self.example))]
        return [*rows, -self.example, 0 * self.example] if self.example.is_floating_point() else rows

    def _of_more(self, called: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """What twice as many samples give, which tells the batch's size from others; for a model of one size, the first
        size of every tensor is taken to be the batch's."""
        try:
            return self._run(self.example.repeat_interleave(2, 0))[0]
        except (RuntimeError, ValueError):
            return {
                name: [v.repeat_interleave(2, 0) if isinstance(v, Tensor) and v.dim() else v for v in outputs]
                for name, outputs in called.items()
            }

    def _run(self, x: Tensor) -> tuple[dict[str, list[Any]], Any]:
        """What every module gave, call by call, and the model's output."""
        called: dict[str, list[Any]] = {}

        def note(name: str) -> Hook:
            return lambda module, inputs, output: called.setdefault(name, []).append(_copied(output))

        names = [name for name, _ in self.model.named_modules() if name]
        with torch.no_grad(), _hooked(self.model, {name: note(name) for name in names}):
            whole = self.model(x)
        return called, whole

    def _sendable(self, value: Any, more: Any) -> bool:
        """Whether it is a tensor with one row per sample; ``more`` is the same of twice as many samples."""
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

        with _hooked(self.model, {name: keep(name) for name in names}), suppress(_Reached):
            self.model(x)
        for name in names:
            if name not in found:
                raise _not_called(name)
        return {name: found[name] for name in names}

    def costs(self, x: Tensor, *, repeats: int) -> dict[str, Cost]:
        whole = _seconds(lambda: self.model(x), repeats)
        found: dict[str, Cost] = {}
        for name in self.points:
            edge = self.edge(name)
            used = _Used(self.model)
            with torch.no_grad(), counted_flops() as counter, used:
                edge(x)
            share = min(1.0, _seconds(lambda edge=edge: edge(x), repeats) / whole) if repeats else None
            found[name] = Cost(used.count(), counter.get_total_flops() // len(x), share)
        return found


class _Used(TorchDispatchMode):
    """Which parameters the operations of a block read."""

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


def _copied(output: Any) -> Any:
    return output.clone() if isinstance(output, Tensor) else output


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    if not repeats:
        return 1.0
    took: list[float] = []
    with torch.no_grad():
        run()
        for _ in range(repeats):
            began = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2]
