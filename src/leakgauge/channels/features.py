"""The features at a cut: what the edge of a split network sends to the cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leakgauge.channels.facts import require_shared
from leakgauge.core import Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.graphs import example_of, find_point, trace_of


@example("mlp", cut="body.1")
@example("lenet", cut="body.1")
@example("cnn", cut="features.2")
@example("vit", cut="blocks.0")
@example("vit_a", cut="blocks.1")
@checked
@dataclass(frozen=True)
class Features:
    """z = M1(x): the tensors that cross ``cut``, by name. If a single tensor crosses, it has the name of the cut.

    ``cut`` is a name from ``leakgauge.split.cuts``, or a module that ends there. One row per sample; labels are not used.
    Differentiable in x. The victim runs in eval mode, as in inference.

    Ref: Liu and Zhu 2025, section 2.1 — the transmitted features
    """

    cut: str

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        traced = trace_of(victim)
        point = find_point(traced, self.cut)
        sent = traced.edge(point.name)(x)
        return {spec.name: value for spec, value in zip(point.tensors, sent, strict=True)}

    def resume(self, victim: Victim, signal: Signal, /) -> Any:
        """The model's output, which the cloud computes from the features."""
        traced = trace_of(victim)
        point = find_point(traced, self.cut)
        sent = [require_shared(signal, spec.name) for spec in point.tensors]
        return traced.cloud(point.name)(*sent)

    def like(self, victim: Victim, size: int, /) -> Signal:
        """A signal of ``size`` samples with the right names, shapes and types; its values mean nothing."""
        blank = example_of(victim, 1)
        return {
            spec.name: blank.new_zeros((size, *spec.shape), dtype=spec.dtype)
            for spec in find_point(trace_of(victim), self.cut).tensors
        }
