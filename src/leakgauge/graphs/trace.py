"""Follows any model through its computation: torch.export, then torch.fx, then module hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from leakgauge.core import Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import BadInput, Inapplicable, LeakgaugeError
from leakgauge.families.nearest import nearest
from leakgauge.graphs.captured import Captured
from leakgauge.graphs.exporting import exported
from leakgauge.graphs.hooked import Hooked, alike
from leakgauge.graphs.points import Point, Traced
from leakgauge.graphs.symbolic import symbolic

SAMPLES = 3
"""Of the example: an unusual number, so that a dimension of this size is the batch."""

_known: WeakKeyDictionary[Victim, Traced] = WeakKeyDictionary()


def trace_of(victim: Victim) -> Traced:
    """The victim's trace; it is made once, for a victim does not change."""
    if victim not in _known:
        _known[victim] = trace(victim)
    return _known[victim]


def trace(victim: Victim) -> Traced:
    """The first way of following the model that gives a graph which computes what the model computes.

    Tried are torch.export for any batch size, torch.export of one sample, torch.fx and module hooks. ``how`` of the
    result says which one it was and why those before it failed. Inference runs in eval mode, and so must the victim.
    """
    if victim.mode != "eval":
        raise BadInput("a model is cut for inference, which runs in eval mode; make the victim with mode='eval'")
    x = example_of(victim, SAMPLES)
    model = victim.model
    try:
        with torch.no_grad(), same_draws(victim):
            whole = victim(x)
    except LeakgaugeError:
        raise
    except Exception as error:
        shape = "x".join(map(str, victim.space.shape))
        raise BadInput(f"the model {victim.name} does not take samples of shape {shape}: {_said(error)}") from error
    ways: list[tuple[str, Callable[[], Captured]]] = [
        ("torch.export", lambda: exported(model, x, any_batch=True)),
        ("torch.export of one sample", lambda: exported(model, x, any_batch=False)),
        ("torch.fx", lambda: symbolic(model, x)),
    ]
    failed: list[str] = []
    for name, way in ways:
        reason = None
        try:
            with same_draws(victim):
                found = way()
                points = list(found.points)
            if points:
                last = points[-1]
                with torch.no_grad(), same_draws(victim):
                    same = alike(found.cloud(last)(*found.edge(last)(x)), whole)
                if same:
                    return replace(found, how="; ".join([found.how, *failed]))
                reason = "its graph computes something else than the model"
            else:
                reason = "no point where the computation can be cut"
        except Exception as error:  # noqa: BLE001 - tracers raise anything; the reason is kept and told
            reason = _said(error)
        failed.append(f"{name}: {reason}")
    hooked = Hooked(model, x, "; ".join(["module hooks", *failed]))
    with same_draws(victim):
        points = hooked.points
    if not points:
        raise Inapplicable(
            f"{victim.name} cannot be cut: no module's output alone determines the result; {'; '.join(failed)}"
        )
    return hooked


def same_draws(victim: Victim) -> AbstractContextManager[None]:
    """Makes a model that draws random numbers in eval mode (noise of its own, say) draw the same ones in every such block."""
    return private_randomness(0, victim.device)


def example_of(victim: Victim, count: int) -> Tensor:
    """Samples drawn from the victim's space, always the same ones, as the model takes them."""
    x = victim.space.start(count, torch.Generator().manual_seed(0)).to(victim.device)
    return x.to(victim.dtype) if x.is_floating_point() else x


def find(traced: Traced, name: str) -> Point:
    """The point called ``name``, or ending with the module of that name; ``BadInput`` with the nearest names if none is."""
    if name in traced.points:
        return traced.points[name]
    aliases = {alias: point for point in traced.points.values() for alias in point.aliases}
    if name in aliases:
        return aliases[name]
    raise BadInput(f"there is no cut {name!r}; {nearest(name, [*traced.points, *aliases])}")


def _said(error: BaseException) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:200]
