"""Chains of elementwise operations as one kernel each: on a GPU, for long attacks, where it is asked for.

Half of a step on a vision transformer moves numbers that the next operation reads again. ``torch.compile`` makes one kernel of such a
chain (it cannot differentiate a whole model twice). That takes some seconds before the first step, and needs Triton and a C compiler.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from leakgauge.engine.precision import Exact, Precision
from leakgauge.errors import Inapplicable

P = ParamSpec("P")
R = TypeVar("R")
DEVICES, BACKEND = {"cuda"}, "inductor"
DEVIATION = 1e-4
"""Largest accepted deviation of a kernel from its chain, relative to the largest value of a result."""


class _Switch:
    """One for the process: the backward pass of a GPU runs in a thread of its own, which no context variable reaches."""

    on = False


@dataclass(frozen=True)
class Fused:
    """``precision=Fused(TF32())``: as the precision within, and chains of elementwise operations run as one kernel on a GPU.

    Each kernel is compared with its chain when it is first used. On a CPU nothing changes.
    """

    of: Precision = field(default_factory=Exact)

    @contextmanager
    def inside(self, device: torch.device, /) -> Iterator[None]:
        if device.type == "cuda" and importlib.util.find_spec("triton") is None:
            raise Inapplicable("fused kernels need Triton, which is not installed; leave Fused() out")
        before, _Switch.on = _Switch.on, True
        try:
            with self.of.inside(device):
                yield
        finally:
            _Switch.on = before


def rounds(precision: Precision) -> bool:
    """Whether it computes less exactly than float32."""
    return rounds(precision.of) if isinstance(precision, Fused) else not isinstance(precision, Exact)


def named(precision: Precision) -> str:
    """For a note: ``TF32``, ``TF32, fused kernels``."""
    return f"{named(precision.of)}, fused kernels" if isinstance(precision, Fused) else type(precision).__name__


def chain(function: Callable[P, R]) -> Callable[P, R]:
    """A function of tensors, which it does not change, for use where nothing is differentiated: :class:`Fused` may make it one kernel."""

    @functools.cache
    def compiled() -> Callable[..., R]:  # importing what compiles takes a second
        return torch.compile(function, fullgraph=True, backend=BACKEND)

    proven: set[Any] = set()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [one for one in args if isinstance(one, Tensor)]
        # inside a mode, as in the proof of a replay, everything is watched operation by operation
        if not _Switch.on or tensors[0].device.type not in DEVICES or torch._C._len_torch_function_stack():
            return function(*args, **kwargs)
        key = tuple((tuple(t.shape), t.stride(), t.dtype) for t in tensors)
        if key not in proven:
            compare(compiled()(*args, **kwargs), function(*args, **kwargs), function.__name__)
            proven.add(key)
        return compiled()(*args, **kwargs)

    return call


def compare(found: Any, expected: Any, name: str) -> None:
    """Refuses a kernel whose results are not those of its chain."""
    for ours, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        scale = theirs.abs().max().clamp_min(torch.finfo(theirs.dtype).tiny)
        off = float((ours - theirs).abs().max() / scale)
        if not off <= DEVIATION:
            raise Inapplicable(f"the fused kernel of {name} is off by {off:.1e}; leave Fused() out")
