"""In which dimension of a tensor the samples are: most models keep them first, attention that takes positions first moves them.

Nothing depends on it that is not compared with the reference afterwards: where it is not known, the first dimension is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from leakgauge.engine.nested import map_tensors, tensors

Function = Callable[..., Any]

MANY = 1_000_003
"""Samples of a tensor without values; no other dimension has that many."""

_PROPERTIES: list[Function] = [getattr(Tensor, name).__get__ for name in ("T", "mT")]
MOVING: set[Function] = {
    torch.transpose, torch.permute, torch.swapaxes, torch.swapdims, torch.movedim, torch.moveaxis, torch.t,
    Tensor.transpose, Tensor.permute, Tensor.swapaxes, Tensor.swapdims, Tensor.movedim, Tensor.moveaxis, Tensor.t,
    *_PROPERTIES, torch.unsqueeze, Tensor.unsqueeze, torch.stack, torch.einsum,
}  # fmt: skip
"""Functions that take the first dimension elsewhere, without a change of shape where sizes happen to agree."""


def axes_after(
    func: Function, args: Any, kwargs: Any, result: Any, axis_of: Callable[[Any], int | None]
) -> Iterable[int]:
    """The samples' dimension in each tensor of ``result = func(*args, **kwargs)``; ``axis_of`` is None for what holds no samples.

    A result of the same shape has them where they were. Else PyTorch is asked: the function runs on tensors without values that
    have another number of samples, and that number is looked for in what comes out.
    """
    data = [(t.shape, axis) for t in tensors((args, kwargs)) if (axis := axis_of(t)) is not None]
    if func not in MOVING:
        if not any(axis for _, axis in data):
            return repeat(0)
        made = [t.shape for t in tensors(result)]
        kept = [[axis for shape, axis in data if shape == one] for one in made]
        if all(kept):
            return [max(axes) for axes in kept]
    return _asked(func, args, kwargs, axis_of) or repeat(0)


def _asked(func: Function, args: Any, kwargs: Any, axis_of: Callable[[Any], int | None]) -> list[int]:
    def valueless(tensor: Tensor) -> Tensor:
        axis = axis_of(tensor)
        shape = [MANY if d == axis else size for d, size in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    try:
        with torch.no_grad():
            given, named = map_tensors(valueless, (args, kwargs))
            found = [t.shape for t in tensors(func(*given, **named))]
    except (RuntimeError, ValueError, TypeError, IndexError):  # sizes were given as numbers, say
        return []
    return [shape.index(MANY) if MANY in shape else 0 for shape in found]
