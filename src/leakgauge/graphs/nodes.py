"""The nodes of a graph: readable names from the modules that made them, and which values are alive at each step and must be sent."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import fx


@dataclass(frozen=True)
class NodeName:
    """A node's own name and the enclosing modules that end at the same node."""

    name: str
    aliases: tuple[str, ...]


def names_of(nodes: Sequence[fx.Node]) -> dict[fx.Node, NodeName]:
    """A unique name for each node.

    The last node of a module's call is named after the module (the innermost one if several end there). Any other node is
    named after the module it runs in and its operation. Repeated calls of a module get ``_1``, ``_2``, …
    """
    last: dict[str, fx.Node] = {}
    for node in nodes:
        for call in _calls(node):
            last[call] = node
    taken: set[str] = set()
    found: dict[fx.Node, tuple[str, list[str]]] = {}
    for node in nodes:
        calls = _calls(node)
        ending = [path for call, path in calls.items() if last[call] is node]
        inner = list(calls.values())[-1] if calls else ""
        if ending:
            name, aliases = ending[-1], ending[:-1]
        else:
            name, aliases = f"{inner}.{operation(node)}" if inner else operation(node), []
        name = _free(name, taken)
        taken.add(name)
        found[node] = name, aliases
    names: dict[fx.Node, NodeName] = {}
    for node, (name, aliases) in found.items():
        free = tuple(alias for alias in aliases if alias not in taken)
        taken.update(free)
        names[node] = NodeName(name, free)
    return names


def operation(node: fx.Node) -> str:
    """The plain name of a node's operation: ``conv2d``, ``add``, ``relu``."""
    if node.op == "call_function":
        packet = getattr(node.target, "overloadpacket", None)
        name = str(packet).rpartition(".")[2] if packet is not None else getattr(node.target, "__name__", node.name)
        source = node.args[0] if node.args else None
        if name == "getitem" and isinstance(source, fx.Node):  # one of several outputs of an operation
            return operation(source)
        return "batch_norm" if "batch_norm" in name else name.strip("_")  # its name depends on version and mode
    return str(node.target).rpartition(".")[2]


def _calls(node: fx.Node) -> dict[str, str]:
    """The module calls that the node runs in, outermost first, with their paths; without the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    calls = {key: _path(entry) for key, entry in stack.items()}
    return {key: path for key, path in calls.items() if path and not path.startswith("_empty_nn_module_stack")}


def _path(entry: object) -> str:
    path = str(entry[0]) if isinstance(entry, tuple) else ""
    return path.removeprefix("L['self'].").removeprefix("L['self']").partition("@")[0]


def _free(name: str, taken: set[str]) -> str:
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


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
        given = node.op == "placeholder"
        if given or (not reads_only_sizes(node) and any(source in found for source in node.all_input_nodes)):
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
