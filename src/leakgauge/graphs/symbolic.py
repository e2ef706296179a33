"""Tracing with torch.fx: a graph of the model's own modules, for every batch size."""

from __future__ import annotations

import copy

from torch import Tensor, fx, nn

from leakgauge.graphs.captured import Captured
from leakgauge.graphs.liveness import IN_PLACE


def symbolic(model: nn.Module, x: Tensor) -> Captured:
    """Raises whatever torch.fx raises where it cannot follow the model, which is copied."""
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
    return Captured(traced, "torch.fx", True, x, None)
