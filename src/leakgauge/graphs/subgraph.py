"""Cuts a graph in two: the part that computes the live values, and the part that continues from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from leakgauge.graphs.nodes import ancestors, reads_only_sizes


def stand_in(value: Tensor, shape: Sequence[int]) -> Tensor:
    """A placeholder tensor with the batch size of ``value`` and ``shape`` per sample; its values mean nothing."""
    return value.new_empty((value.shape[0], *shape))


class EdgeHalf(nn.Module):
    """From x to the tensors that are sent, as a tuple."""

    def __init__(self, body: fx.GraphModule) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.body(x))


class CloudHalf(nn.Module):
    """From the sent tensors to the output of the whole model."""

    def __init__(self, body: fx.GraphModule, out_spec: pytree.TreeSpec | None) -> None:
        super().__init__()
        self.body, self.out_spec = body, out_spec

    def forward(self, *sent: Tensor) -> Any:
        found = self.body(*sent)
        return found if self.out_spec is None else pytree.tree_unflatten(list(found), self.out_spec)


def front(module: fx.GraphModule, wanted: Sequence[fx.Node]) -> fx.GraphModule:
    """The part of the graph that computes ``wanted`` from the input; it returns them as a tuple."""
    keep = ancestors(list(wanted), stop=lambda node: False)
    graph, copies = fx.Graph(), {}
    for node in module.graph.nodes:
        if node.op == "placeholder" or node in keep:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(tuple(copies[node] for node in wanted))
    return fx.GraphModule(module, graph)


def back(module: fx.GraphModule, sent: Sequence[fx.Node], shapes: dict[fx.Node, tuple[int, ...]]) -> fx.GraphModule:
    """The part of the graph that continues from the values ``sent``.

    Sizes of tensors that stayed on the edge come from a placeholder of the same size: ``shapes`` holds the shape of each node
    for one sample.
    """
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    keep = ancestors([output], stop=lambda node: node in sent or reads_only_sizes(node))
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for number, node in enumerate(sent):
        copies[node] = graph.placeholder(f"z{number}")
        copies[node].meta = dict(node.meta)
    stand_ins: dict[fx.Node, fx.Node] = {}

    def copied(source: fx.Node) -> fx.Node:
        return copies[source] if source in copies else stand_ins[source]

    for node in module.graph.nodes:
        if node not in keep or node in copies:
            continue
        if reads_only_sizes(node):
            for source in node.all_input_nodes:
                if source not in copies and source not in stand_ins:
                    first = copies[sent[0]]
                    stand_ins[source] = _sized(graph, node, first, shapes[source])
        copies[node] = graph.node_copy(node, copied)
    return fx.GraphModule(module, graph)


def _sized(graph: fx.Graph, reader: fx.Node, sent: fx.Node, shape: tuple[int, ...]) -> fx.Node:
    """The placeholder node that a reader of sizes uses for a tensor that was not sent."""
    batch_alone = reader.target is torch.ops.aten.sym_size.int and reader.args[1] == 0
    return sent if batch_alone else graph.call_function(stand_in, (sent, shape))
