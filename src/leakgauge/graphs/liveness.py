"""Which values are alive at each step of a graph. Only those must be sent."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import torch
from torch import fx

ONLY_SIZES: set[object] = {torch.ops.aten.sym_size.int, torch.ops.aten.sym_size.default}
"""Operations of an exported graph that read the size of a tensor but not its values."""

SIZE_METHODS = {"size", "dim", "numel", "__len__"}
SIZE_ATTRIBUTES = {"shape", "dtype", "device", "ndim"}


def reads_only_sizes(node: fx.Node) -> bool:
    """Whether the node's result depends only on the sizes of its inputs, which the cloud knows anyway."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in SIZE_ATTRIBUTES
    if node.op == "call_method":
        return node.target in SIZE_METHODS
    return node.op == "call_function" and node.target in ONLY_SIZES


def depending_on_input(graph: fx.Graph) -> set[fx.Node]:
    """Nodes with values that depend on the values of the input, not merely on its size."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        told = node.op == "placeholder"
        if told or (not reads_only_sizes(node) and any(source in found for source in node.all_input_nodes)):
            found.add(node)
    return found


def live_values(graph: fx.Graph) -> Iterator[tuple[fx.Node, tuple[fx.Node, ...]]]:
    """After each step that depends on the input: the node, and all such values so far that are needed later.

    A value is needed later if a later node reads it. Values that depend only on the input's size (a mask, a class token
    repeated for every sample) can be recomputed on the other side and do not count.
    """
    data = depending_on_input(graph)
    order = {node: i for i, node in enumerate(graph.nodes)}
    last_use = {
        node: max((order[user] for user in node.users if not reads_only_sizes(user)), default=-1) for node in data
    }
    alive: list[fx.Node] = []
    for node in graph.nodes:
        if node.op == "output":
            return
        alive = [value for value in alive if last_use[value] > order[node]]
        if node in data:
            if last_use[node] > order[node]:
                alive.append(node)
            yield node, tuple(alive)


def ancestors(outputs: list[fx.Node], *, stop: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """Every node that the outputs are computed from, stopping at the nodes where ``stop`` holds."""
    found: set[fx.Node] = set()
    waiting = list(outputs)
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if not stop(node):
            waiting.extend(node.all_input_nodes)
    return found


IN_PLACE: dict[Callable[..., object], Callable[..., object]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
"""Python's in-place operators and what they compute."""
