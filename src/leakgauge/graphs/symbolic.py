"""Tracing with torch.fx: a graph of the model's own modules, for any batch size."""

from __future__ import annotations

import copy

from torch import Tensor, fx, nn

from leakgauge.graphs.liveness import IN_PLACE
from leakgauge.graphs.traced_graph import TracedGraph


def trace_symbolically(model: nn.Module, x: Tensor) -> TracedGraph:
    """The graph from torch.fx, which raises its own errors if it cannot trace the model. The model is copied."""
    own = copy.deepcopy(model)
    for module in own.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # pyright: ignore[reportArgumentType] - or a value sent would change later
    traced = fx.symbolic_trace(own)
    for node in traced.graph.nodes:
        if node.op == "call_function" and node.target in IN_PLACE:
            node.target = IN_PLACE[node.target]
        if node.kwargs.get("inplace") is True:
            node.kwargs = {**node.kwargs, "inplace": False}
    traced.recompile()
    return TracedGraph(traced, "torch.fx", True, x, None)
