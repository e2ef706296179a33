"""In which dimension of a tensor the samples are: most models keep them first, attention that takes positions first moves them.

Nothing depends on it that is not compared with the reference afterwards: where it is not known, the first dimension is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

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
    func: Function, args: Any, kwargs: Any, result: Any, axis_of: Callable[[Tensor], int | None]
) -> list[int]:
    """The samples' dimension in each tensor of ``result = func(*args, **kwargs)``; ``axis_of`` is None for what holds no samples.

    A result of the same shape has them where they were. Else PyTorch is asked: the function runs on tensors without values that
    have another number of samples, and that number is looked for in what comes out.
    """
    data = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and axis_of(t) is not None]
    made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
    if func not in MOVING:
        if all(axis_of(t) == 0 for t in data):
            return [0] * len(made)
        kept = [[axis_of(t) or 0 for t in data if t.shape == one.shape] for one in made]
        if all(kept):
            return [max(axes) for axes in kept]
    return _asked(func, args, kwargs, axis_of) or [0] * len(made)


def _asked(func: Function, args: Any, kwargs: Any, axis_of: Callable[[Tensor], int | None]) -> list[int]:
    def valueless(tensor: Tensor) -> Tensor:
        axis = axis_of(tensor)
        shape = [MANY if d == axis else size for d, size in enumerate(tensor.shape)]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    try:
        with torch.no_grad():
            given, named = tree_map_only(Tensor, valueless, (args, kwargs))
            found = [t.shape for t in tree_leaves(func(*given, **named)) if isinstance(t, Tensor)]
    except (RuntimeError, ValueError, TypeError, IndexError):  # sizes were given as numbers, say
        return []
    return [shape.index(MANY) if MANY in shape else 0 for shape in found]
