"""A traced model as a graph of operations, from torch.export or torch.fx."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakgauge.graphs.counting import count_flops
from leakgauge.graphs.nodes import ancestors, live_values, names_of, operation
from leakgauge.graphs.points import EdgeCost, Point, TensorSpec
from leakgauge.graphs.subgraph import CloudHalf, EdgeHalf, back, front


@dataclass(frozen=True, eq=False)
class TracedGraph:
    """``module`` computes a flat output; ``out_spec``, if given, restores the structure that the model returns.

    With ``any_batch=False`` the graph takes one sample, and batches are mapped over it with vmap. ``example`` is a valid input of
    the graph.
    """

    module: fx.GraphModule
    how: str
    any_batch: bool
    example: Tensor
    out_spec: pytree.TreeSpec | None
    _halves: dict[tuple[str, str], nn.Module] = field(default_factory=dict)

    @cached_property
    def _specs(self) -> dict[fx.Node, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of every tensor that a node makes, recorded in one run of the example."""
        return self._seen(self.example)

    @cached_property
    def _of_more(self) -> dict[fx.Node, tuple[tuple[int, ...], torch.dtype]]:
        """The same for twice as many samples, if the graph takes them: shows which dimension is the batch."""
        return self._seen(self.example.repeat_interleave(2, 0)) if self.any_batch else self._specs

    def _seen(self, x: Tensor) -> dict[fx.Node, tuple[tuple[int, ...], torch.dtype]]:
        recorder = _Recorder(self.module)
        with torch.no_grad():
            recorder.run(x)
        return recorder.specs

    @cached_property
    def _live(self) -> dict[str, tuple[fx.Node, ...]]:
        return {point.name: values for point, values in self._found}

    @property
    def points(self) -> Mapping[str, Point]:
        return self._points

    @cached_property
    def _points(self) -> dict[str, Point]:
        return {point.name: point for point, _ in self._found}

    @cached_property
    def _found(self) -> list[tuple[Point, tuple[fx.Node, ...]]]:
        steps = list(live_values(self.module.graph))
        names = names_of([node for node, _ in steps if node.op != "placeholder" and node in self._specs])
        found: list[tuple[Point, tuple[fx.Node, ...]]] = []
        known: set[frozenset[fx.Node]] = set()
        for node, values in steps:
            if node not in names or frozenset(values) in known or not self._sendable(values):
                continue
            known.add(frozenset(values))
            own = names[node]
            called = [names[v].name if v in names else "input" for v in values]
            called = called if len(values) > 1 else [own.name]  # a single tensor has the name of the cut
            tensors = tuple(TensorSpec(name, *self._per_sample(v)) for name, v in zip(called, values, strict=True))
            aliases = own.aliases if values == (node,) else ()
            found.append((Point(own.name, tensors, operation(node), aliases), values))
        return found

    def _sendable(self, values: Sequence[fx.Node]) -> bool:
        """Whether the values are numeric tensors with one row per sample (not a tuple or a flag)."""
        if not values or all(value.op == "placeholder" for value in values):
            return False
        return all(value in self._specs and self._by_rows(value) for value in values)

    def _by_rows(self, node: fx.Node) -> bool:
        (shape, dtype), (more, _) = self._specs[node], self._of_more[node]
        rows, of_more = len(self.example), len(self.example) * (2 if self.any_batch else 1)
        return shape[:1] == (rows,) and more == (of_more, *shape[1:]) and dtype.is_floating_point

    def _per_sample(self, node: fx.Node) -> tuple[tuple[int, ...], torch.dtype]:
        shape, dtype = self._specs[node]
        return shape[1:], dtype

    def edge(self, name: str) -> nn.Module:
        """The first half: from x to a tuple of tensors."""
        if ("edge", name) not in self._halves:
            self._halves["edge", name] = self._whole_batch(EdgeHalf(front(self.module, self._live[name])))
        return self._halves["edge", name]

    def cloud(self, name: str) -> nn.Module:
        """The second half: from the tensors to the model's output."""
        if ("cloud", name) not in self._halves:
            shapes = {node: shape[1:] for node, (shape, _) in self._specs.items()}
            body = back(self.module, self._live[name], shapes)
            self._halves["cloud", name] = self._whole_batch(CloudHalf(body, self.out_spec))
        return self._halves["cloud", name]

    def _whole_batch(self, half: nn.Module) -> nn.Module:
        return half if self.any_batch else OneByOne(half)

    def values(self, x: Tensor, names: Sequence[str]) -> dict[str, tuple[Tensor, ...]]:
        """The tensors at several points from one forward pass, which stops at the last of them."""
        wanted = list(dict.fromkeys(node for name in names for node in self._live[name]))
        key = "values", "\n".join(node.name for node in wanted)
        if key not in self._halves:
            self._halves[key] = self._whole_batch(EdgeHalf(front(self.module, wanted)))
        found = dict(zip(wanted, self._halves[key](x), strict=True))
        return {name: tuple(found[node] for node in self._live[name]) for name in names}

    def costs(self, x: Tensor) -> dict[str, EdgeCost]:
        """Costs of all points for one sample; see ``Traced.costs``."""
        if not self.any_batch:
            x = x[:1]
        with torch.no_grad():
            counted = _Recorder(self.module, count=True)
            counted.run(x)
        found: dict[str, EdgeCost] = {}
        for name, values in self._live.items():
            nodes = ancestors(list(values), stop=lambda node: False)
            flops = sum(counted.flops.get(node, 0) for node in nodes)
            found[name] = EdgeCost(self._parameters(nodes), flops // len(x))
        return found

    def _parameters(self, nodes: set[fx.Node]) -> int:
        used: dict[int, int] = {}
        for node in nodes:
            for parameter in _parameters_of(self.module, node):
                used[id(parameter)] = parameter.numel()
        return sum(used.values())


class OneByOne(nn.Module):
    """Maps a half that takes one sample over a batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *tensors: Tensor) -> Any:
        def one(*rows: Tensor) -> Any:
            return self.inner(*(row[None] for row in rows))

        with sdpa_kernel(SDPBackend.MATH):  # vmap cannot map the fused kernels
            found = torch.vmap(one)(*tensors)
        return pytree.tree_map_only(Tensor, lambda value: value.flatten(0, 1), found)


class _Recorder(fx.Interpreter):
    """Runs the graph node by node and records the result and cost of each."""

    def __init__(self, module: fx.GraphModule, *, count: bool = False) -> None:
        super().__init__(module)
        self.count = count
        self.specs: dict[fx.Node, tuple[tuple[int, ...], torch.dtype]] = {}
        self.flops: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        if self.count:
            with count_flops() as counter:
                made = super().run_node(n)
            self.flops[n] = counter.get_total_flops()
        else:
            made = super().run_node(n)
        if isinstance(made, Tensor):
            self.specs[n] = tuple(made.shape), made.dtype
        return made


def _parameters_of(module: fx.GraphModule, node: fx.Node) -> list[nn.Parameter]:
    if node.op == "call_module":
        return list(module.get_submodule(str(node.target)).parameters())
    if node.op == "get_attr":
        value: Any = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        return [value] if isinstance(value, nn.Parameter) else []
    return []
