"""Tensors inside the arguments and results of functions: tuples, lists and dictionaries, nested to any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


class Slot:
    """Marks where a tensor belongs."""

    def __init__(self, index: int) -> None:
        self.index = index


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in ``value``, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """``value`` with each tensor changed, in order, and everything else kept."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(change, item) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(change, item) for key, item in value.items()}
    return value


def fill(holes: Any, values: tuple[Tensor, ...]) -> Any:
    """``holes`` with a tensor in each slot."""
    if isinstance(holes, Slot):
        return values[holes.index]
    if isinstance(holes, (tuple, list)):
        return type(holes)(fill(item, values) for item in holes)
    if isinstance(holes, dict):
        return {key: fill(item, values) for key, item in holes.items()}
    return holes
