"""Traces any model: torch.export, then torch.fx, then module hooks."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.fx.graph import CodeGen

from leakgauge.core import Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput, Inapplicable, LeakgaugeError, one_line
from leakgauge.families.nearest import nearest
from leakgauge.graphs.hooks import TracedByHooks, alike
from leakgauge.graphs.nodes import IN_PLACE
from leakgauge.graphs.points import Point, Traced
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


SAMPLES = 3
"""Batch size of the example: an unusual number, so a dimension of this size must be the batch."""

_known: WeakKeyDictionary[Victim, Traced] = WeakKeyDictionary()


def trace_of(victim: Victim) -> Traced:
    """The victim's trace. It is made once, because a victim does not change."""
    if victim not in _known:
        _known[victim] = trace(victim)
    return _known[victim]


def trace(victim: Victim) -> Traced:
    """The first tracing method with a graph that computes the same as the model.

    The order is torch.export for any batch size, torch.export of one sample, torch.fx, module hooks. ``how`` of the result
    says which one worked and why the earlier ones failed. The victim must be in eval mode, as in inference.
    """
    if victim.mode != "eval":
        raise BadInput("a model is cut for inference, which needs eval mode; create the victim with mode='eval'")
    x = example_of(victim, SAMPLES)
    model = victim.model
    try:
        with torch.no_grad(), fixed_draws(victim):
            whole = victim(x)
    except LeakgaugeError:
        raise
    except Exception as error:
        shape = "x".join(map(str, victim.space.shape))
        raise BadInput(f"the model {victim.name} does not take samples of shape {shape}: {one_line(error)}") from error
    ways: list[tuple[str, Callable[[], TracedGraph]]] = [
        ("torch.export", lambda: export_graph(model, x, any_batch=True)),
        ("torch.export of one sample", lambda: export_graph(model, x, any_batch=False)),
        ("torch.fx", lambda: trace_symbolically(model, x)),
    ]
    failed: list[str] = []
    with fixed_draws(victim):
        if _changes_input(model, x):  # a graph would change the features of the caller
            ways, failed = [], ["graphs: the model changes its input in place"]
    for name, way in ways:
        reason = None
        try:
            with fixed_draws(victim):
                found = way()
                points = list(found.points)
            if points:
                last = points[-1]
                with torch.no_grad(), fixed_draws(victim):
                    same = alike(found.cloud(last)(*found.edge(last)(x)), whole)
                if same:
                    return replace(found, how="; ".join([found.how, *failed]))
                reason = "its graph does not compute what the model computes"
            else:
                reason = "no point where the computation can be cut"
        except Exception as error:  # noqa: BLE001 - tracers raise anything; the reason is kept and reported
            reason = one_line(error)
        failed.append(f"{name}: {reason}")
    hooked = TracedByHooks(model, x, "; ".join(["module hooks", *failed]))
    with fixed_draws(victim):
        points = hooked.points
    if not points:
        raise Inapplicable(
            f"{victim.name} cannot be cut: no module's output alone determines the result; {'; '.join(failed)}"
        )
    return hooked


def fixed_draws(victim: Victim) -> AbstractContextManager[None]:
    """In every such block, a model that draws random numbers in eval mode draws the same ones."""
    return private_randomness(0, victim.device)


def example_of(victim: Victim, count: int) -> Tensor:
    """Samples drawn from the victim's space, always the same ones, in the model's type."""
    x = victim.space.start(count, torch.Generator().manual_seed(0)).to(victim.device)
    return x.to(victim.dtype) if x.is_floating_point() else x


def find_point(traced: Traced, name: str) -> Point:
    """The point with this name, or the point where the module of this name ends; ``BadInput`` with the nearest names if there is none."""
    if name in traced.points:
        return traced.points[name]
    aliases = {alias: point for point in traced.points.values() for alias in point.aliases}
    if name in aliases:
        return aliases[name]
    raise BadInput(f"there is no cut {name!r}; {nearest(name, [*traced.points, *aliases])}")


def _changes_input(model: nn.Module, x: Tensor) -> bool:
    given = x.clone()
    with torch.no_grad():
        model(given)
    return not torch.equal(given, x)
