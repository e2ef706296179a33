"""Readable names for the nodes of a graph, from the modules that produced them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
