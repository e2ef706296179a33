"""The two halves of a model at a cut, verified to equal the model when run one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from leakgauge.core import Space, Victim
from leakgauge.errors import BadInput
from leakgauge.graphs import Point, example_of, find_point, fixed_draws, trace_of
from leakgauge.split.cuts import as_victim


@dataclass(frozen=True, eq=False)
class Halves:
    """``edge``: from x to a tuple of tensors; ``cloud``: from these tensors to the model's output.

    ``error`` is the largest difference of cloud(edge(x)) from the model's output, relative to its largest value, measured when the
    halves were created. ``any_batch``: whether they are graphs for any batch size.
    """

    point: Point
    edge: nn.Module
    cloud: nn.Module
    error: float
    any_batch: bool
    how: str

    def __call__(self, x: Tensor) -> Any:
        return self.cloud(*self.edge(x))


def halves(
    model: Victim | nn.Module,
    cut: str,
    space: Space | tuple[int, int, int] | None = None,
    *,
    tolerance: float = 1e-4,
    samples: int = 5,
) -> Halves:
    """The halves at ``cut``; refused if they do not reproduce the model's output on ``samples`` inputs.

    Both share their weights with the victim's own copy of the model. Differentiable in x and in the tensors.
    """
    victim = as_victim(model, space)
    traced = trace_of(victim)
    point = find_point(traced, cut)
    edge, cloud = traced.edge(point.name), traced.cloud(point.name)
    x = example_of(victim, samples)
    with torch.no_grad(), fixed_draws(victim):
        ours = cloud(*edge(x))
    with torch.no_grad(), fixed_draws(victim):
        error = difference(ours, victim(x))
    if not error <= tolerance:
        raise BadInput(
            f"the halves at {point.name} differ from the model by {error:.1e} of its largest output, more than "
            f"{tolerance:g}; the model was traced with {traced.how}"
        )
    return Halves(point, edge, cloud, error, traced.any_batch, traced.how)


def difference(ours: Any, theirs: Any) -> float:
    """Largest difference of two outputs of the same structure, relative to the largest value of the second; NaN counts as ∞."""
    pairs = list(zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True))
    largest = 0.0
    for a, b in pairs:
        if not isinstance(a, Tensor):
            continue
        if a.shape != b.shape or bool(a.isnan().any()):
            return float("inf")
        b = b.to(a.device)
        scale = max(float(b.double().abs().max()), torch.finfo(torch.float32).tiny)
        largest = max(largest, float((a.double() - b.double()).abs().max()) / scale)
    return largest
