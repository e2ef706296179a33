"""Tracing with torch.export: a graph of plain operations for any batch size, or else for one sample."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import torch
from torch import Tensor, nn
from torch.fx.graph import CodeGen

from leakgauge.graphs.traced_graph import TracedGraph


def export_graph(model: nn.Module, x: Tensor, *, any_batch: bool) -> TracedGraph:
    """The graph from torch.export, which raises its own errors if it cannot trace the model. ``x`` holds at least two samples."""
    example = x if any_batch else x[:1]
    shapes = ({0: torch.export.Dim.DYNAMIC},) if any_batch else None
    with _quiet():
        program = torch.export.export(model, (example,), dynamic_shapes=shapes)
        if _writes_in_place(program):
            program = program.run_decompositions({})
        module = program.module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    how = "torch.export" if any_batch else "torch.export of one sample"
    return TracedGraph(_flat(module), how, any_batch, example, program.call_spec.out_spec)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the partial graphs and internals that torch.export prints; real failures still raise."""
    talkative = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = talkative.disabled
    talkative.disabled = True
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        talkative.disabled = before


def _writes_in_place(program: torch.export.ExportedProgram) -> bool:
    """Whether an operation changes its input. Then a value could change after it was sent."""
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes if node.op == "call_function")
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _flat(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module without its input and output structure, so parts of its graph can be copied."""
    module.graph.set_codegen(CodeGen())
    return torch.fx.GraphModule(module, module.graph)
