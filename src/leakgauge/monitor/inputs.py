"""What the monitor keeps of a batch: features that do not depend on the model, and a few samples for the probe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from leakgauge.errors import Inapplicable
from leakgauge.measures.sketch import SignBucket, SketchPlan

WIDTH = 64
PRIME = 2_147_483_647


class BatchFeatures:
    """The mean sample of all forward passes since the last step, randomly projected to ``WIDTH`` numbers.

    Token ids are counted into ``WIDTH`` signed bins by a fixed hash instead. Weights are not used, so the features of different
    batches can be compared at any step.
    """

    def __init__(self, seed: int, has: Callable[[Tensor], Tensor] | None = None) -> None:
        self._seed, self._has = seed, has
        self.share: float | None = None
        """The share of samples of the last batch that was taken for which ``has`` is true."""
        self._plan: SketchPlan | None = None
        self._shape: tuple[int, ...] | None = None
        self._parts: list[tuple[Tensor, int, int]] = []
        self._marked = 0

    def add(self, x: Tensor) -> None:
        """Adds the batch (n, …) of one forward pass."""
        x = x.detach()
        summed = self._tokens(x) if _is_tokens(x) else self._pixels(x)
        self._parts.append((summed, len(x), 0 if self._has is None else int(self._has(x).sum())))

    @property
    def size(self) -> int:
        """Samples seen since the last step."""
        return sum(size for _, size, _ in self._parts)

    def mark(self) -> None:
        """Marks what was seen so far, for :meth:`drop_marked`."""
        self._marked = len(self._parts)

    def drop_marked(self) -> None:
        """Forgets what was seen before the mark, because its gradient was discarded."""
        del self._parts[: self._marked]
        self._marked = 0

    def take(self) -> tuple[Tensor, int] | None:
        """Features and number of samples since the last call; None if there was no forward pass."""
        parts, size = self._parts, self.size
        self.drop()
        if size == 0:
            return None
        total = parts[0][0]
        for part, _, _ in parts[1:]:
            total = total + part
        self.share = sum(those for _, _, those in parts) / size
        return total / size, size

    def drop(self) -> None:
        self._parts, self._marked = [], 0

    def nbytes(self) -> int:
        return 0 if self._plan is None else self._plan.nbytes()

    def _pixels(self, x: Tensor) -> Tensor:
        shape = tuple(x.shape[1:])
        if self._plan is None:
            self._shape = shape
            recipe = SignBucket(total=WIDTH, layers=1)
            self._plan = recipe.plan({"x": (max(1, math.prod(shape)),)}, device=x.device, seed=self._seed)
        if shape != self._shape:
            raise Inapplicable(
                f"the samples' shape changed from {self._shape} to {shape}; the monitor needs equal shapes"
            )
        return self._plan({"x": x.float().sum(0)})[0]

    def _tokens(self, x: Tensor) -> Tensor:
        hashed = (x.reshape(-1).long() * 48_271 + 11 + self._seed) % PRIME * 69_621 % PRIME
        signs = (hashed // WIDTH % 2 * 2 - 1).float() / max(1, math.prod(x.shape[1:]))
        return torch.zeros(WIDTH, device=x.device).index_add_(0, hashed % WIDTH, signs)


def _is_tokens(x: Tensor) -> bool:
    return x.dtype in (torch.int32, torch.int64) and x.ndim <= 2


def batch_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The batch in the arguments of a forward pass: the first tensor with a batch dimension, positional ones first."""
    for tensor in _tensors([*args, *kwargs.values()]):
        if tensor.ndim > 0:
            return tensor
    raise Inapplicable("the model's forward pass got no tensor with a batch dimension")


def only_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the forward pass takes exactly one tensor, so the probe can repeat it."""
    return len(args) == 1 and isinstance(args[0], Tensor) and not kwargs


def _tensors(values: object) -> Iterator[Tensor]:
    match values:
        case Tensor():
            yield values
        case Mapping():
            yield from _tensors(list(values.values()))
        case list() | tuple():
            for value in values:
                yield from _tensors(value)
        case _:
            return
