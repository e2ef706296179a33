"""Which dimension of a tensor holds the samples. Most models keep them first; attention with positions first moves them.

Every replay is compared with the reference afterwards, so a wrong guess here is found; if unknown, the first dimension is assumed.
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
"""Number of samples in a meta tensor; no other dimension has this size."""

_PROPERTIES: list[Function] = [getattr(Tensor, name).__get__ for name in ("T", "mT")]
MOVING: set[Function] = {
    torch.transpose, torch.permute, torch.swapaxes, torch.swapdims, torch.movedim, torch.moveaxis, torch.t,
    Tensor.transpose, Tensor.permute, Tensor.swapaxes, Tensor.swapdims, Tensor.movedim, Tensor.moveaxis, Tensor.t,
    *_PROPERTIES, torch.unsqueeze, Tensor.unsqueeze, torch.stack, torch.einsum,
}  # fmt: skip
"""Functions that move the first dimension, possibly without a change of shape if sizes happen to agree."""


def axes_after(
    func: Function, args: Any, kwargs: Any, result: Any, axis_of: Callable[[Any], int | None]
) -> Iterable[int]:
    """The sample dimension of each tensor of ``result = func(*args, **kwargs)``; ``axis_of`` is None for a tensor without samples.

    A result of the same shape keeps the dimension. Otherwise the function runs on meta tensors with another number of samples,
    and the dimension of that size in the result is the answer.
    """
    data = [(t.shape, axis) for t in tensors((args, kwargs)) if (axis := axis_of(t)) is not None]
    if func not in MOVING:
        if not any(axis for _, axis in data):
            return repeat(0)
        made = [t.shape for t in tensors(result)]
        kept = [[axis for shape, axis in data if shape == one] for one in made]
        if all(kept):
            return [max(axes) for axes in kept]
    return _ask_torch(func, args, kwargs, axis_of) or repeat(0)


def _ask_torch(func: Function, args: Any, kwargs: Any, axis_of: Callable[[Any], int | None]) -> list[int]:
    def valueless(tensor: Tensor) -> Tensor:
        axis = axis_of(tensor)
        shape = [MANY if d == axis else size for d, size in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    try:
        with torch.no_grad():
            given, named = map_tensors(valueless, (args, kwargs))
            found = [t.shape for t in tensors(func(*given, **named))]
    except (RuntimeError, ValueError, TypeError, IndexError):  # for example, sizes were given as numbers
        return []
    return [shape.index(MANY) if MANY in shape else 0 for shape in found]
