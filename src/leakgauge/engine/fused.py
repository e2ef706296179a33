"""Runs chains of elementwise operations as one kernel each: optional, on a GPU, for long attacks.

Half of a step on a vision transformer moves numbers that the next operation reads again. ``torch.compile`` turns such a chain into one
kernel (it cannot differentiate a whole model twice). This takes some seconds before the first step and needs Triton and a C compiler.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves

from leakgauge.engine.precision import Exact, Precision
from leakgauge.errors import Inapplicable

P = ParamSpec("P")
R = TypeVar("R")
DEVICES, BACKEND = {"cuda"}, "inductor"
DEVIATION = 1e-4
"""Largest accepted deviation of a kernel from its chain, relative to the largest value of a result."""
ROUNDINGS = 4
"""The same in units in the last place, for bfloat16: there a chain rounds after every operation, a kernel only once."""


class _Switch:
    """One switch per process: the backward pass on a GPU runs in its own thread, which context variables do not reach.

    It counts, because attacks in several threads may leave in a different order than they entered.
    """

    inside = 0
    lock = threading.Lock()

    @classmethod
    def turn(cls, by: int) -> None:
        with cls.lock:
            cls.inside += by


@dataclass(frozen=True)
class Fused:
    """``precision=Fused(TF32())``: the inner precision, with chains of elementwise operations as one kernel each on a GPU.

    Each kernel is compared with its chain when it is first used. On a CPU nothing changes.
    """

    of: Precision = field(default_factory=Exact)

    @contextmanager
    def inside(self, device: torch.device, /) -> Iterator[None]:
        if device.type == "cuda" and importlib.util.find_spec("triton") is None:
            raise Inapplicable("fused kernels need Triton, which is not installed; leave Fused() out")
        _Switch.turn(1)
        try:
            with self.of.inside(device):
                yield
        finally:
            _Switch.turn(-1)


def rounds(precision: Precision) -> bool:
    """Whether the precision is lower than float32."""
    return rounds(precision.of) if isinstance(precision, Fused) else not isinstance(precision, Exact)


def precision_name(precision: Precision) -> str:
    """For a note: ``TF32``, ``TF32, fused kernels``."""
    return (
        f"{precision_name(precision.of)}, fused kernels" if isinstance(precision, Fused) else type(precision).__name__
    )


def chain(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a pure function of tensors, used where nothing is differentiated: :class:`Fused` may turn it into one kernel."""

    kernels: dict[Any, Callable[..., R]] = {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [one for one in args if isinstance(one, Tensor)]
        if not _Switch.inside or tensors[0].device.type not in DEVICES or _is_watched():
            return function(*args, **kwargs)
        key = tuple(
            (t.shape, t.stride(), t.dtype, t.device, t.requires_grad) if isinstance(t, Tensor) else t for t in args
        )
        if key not in kernels:
            kernel = compile_chain(function)
            compare(kernel(*args, **kwargs), function(*args, **kwargs), function.__name__)
            kernels[key] = kernel
        return kernels[key](*args, **kwargs)

    return call


def _is_watched() -> bool:
    """Whether a mode watches each operation, as in the check of a replay. A default device is a mode too, but does not count."""
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def compile_chain(function: Callable[P, R]) -> Callable[P, R]:
    """One kernel for one set of shapes. PyTorch counts kernels by their code object and gives up after eight, so each gets its own
    copy. Kernels for any shape would be fewer, but then the result of an attack would depend on earlier attacks.
    """
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    return torch.compile(copy, fullgraph=True, dynamic=False, backend=BACKEND)


def compare(found: Any, expected: Any, name: str) -> None:
    """Refuses a kernel with results that differ from its chain."""
    for ours, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        scale = theirs.abs().max().clamp_min(torch.finfo(theirs.dtype).tiny)
        off = float((ours - theirs).abs().max() / scale)
        if not off <= max(DEVIATION, ROUNDINGS * torch.finfo(theirs.dtype).eps):
            raise Inapplicable(f"the fused kernel of {name} is off by {off:.1e}; leave Fused() out")
