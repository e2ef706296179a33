"""Tracing with torch.export: a graph of plain operations for every batch size, or else for one sample."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import torch
from torch import Tensor, nn
from torch.fx.graph import CodeGen

from leakgauge.graphs.captured import Captured


def exported(model: nn.Module, x: Tensor, *, any_batch: bool) -> Captured:
    """Raises whatever torch.export raises where it cannot follow the model. ``x`` holds at least two samples."""
    example = x if any_batch else x[:1]
    shapes = ({0: torch.export.Dim.DYNAMIC},) if any_batch else None
    with _quiet():
        program = torch.export.export(model, (example,), dynamic_shapes=shapes)
        if _writes_in_place(program):
            program = program.run_decompositions({})
        module = program.module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    how = "torch.export" if any_batch else "torch.export of one sample"
    return Captured(_flat(module), how, any_batch, example, program.call_spec.out_spec)


@contextmanager
def _quiet() -> Iterator[None]:
    """Holds back what torch.export says on the side, its partial graph and its internals: what fails is raised."""
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
    """Whether an operation changes its input: then a value that was sent could change after it was taken."""
    schemas = (getattr(node.target, "_schema", None) for node in program.graph.nodes if node.op == "call_function")
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _flat(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module without its folding of inputs and outputs, so that its graph can be copied in parts."""
    module.graph.set_codegen(CodeGen())
    return torch.fx.GraphModule(module, module.graph)
