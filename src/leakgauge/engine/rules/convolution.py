"""Convolutions, as a linear layer on unfolded patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from leakgauge.engine.rules.patches import patches
from leakgauge.engine.rules.use import Use, gram_is_cheaper, gram_square, projected_dot

if TYPE_CHECKING:
    from leakgauge.engine.tape import Tape


@dataclass(frozen=True, eq=False)
class ConvolutionUse(Use):
    """z = W ⋆ a + b for ``a`` (rows·batch, channels, height, width); a 1-d convolution is one of height 1.

    With G groups there are G such layers side by side: patches (R, G, n, inputs) and δ (R, G, n, outputs), n = batch·positions.
    """

    a: Tensor
    shape: tuple[int, ...]
    """Shape of the weight as the model holds it."""
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    positions: int
    groups: int

    @cached_property
    def _patches(self) -> Tensor:
        if self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0):
            unfolded = self.a.flatten(2)
        else:
            unfolded = patches(self.a, self.kernel, self.dilation, self.padding, self.stride)
        return self._by_restart(unfolded)

    def _by_restart(self, maps: Tensor) -> Tensor:
        """(rows·batch, groups·k, positions) as (R, G, n, k)."""
        split = maps.unflatten(1, (self.groups, -1)).unflatten(0, (self.rows, -1))  # (R, B, G, k, L)
        if split.shape[1] == 1:
            return split[:, 0].transpose(-1, -2)
        return split.permute(0, 2, 1, 4, 3).flatten(2, 3)

    def _d(self, delta: Tensor) -> Tensor:
        return self._by_restart(delta.flatten(2))

    def weight_gradient(self, delta: Tensor) -> Tensor:
        return (self._d(delta).transpose(-1, -2) @ self._patches).reshape(self.rows, *self.shape)

    def bias_gradient(self, delta: Tensor) -> Tensor:
        return self._d(delta).sum(2).flatten(1)

    def prefers_gram(self) -> bool:
        n = len(self.a) // self.rows * self.positions
        return gram_is_cheaper(n, math.prod(self.shape[1:]), self.shape[0] // self.groups)

    def dot(self, delta: Tensor, target: Tensor) -> Tensor:
        per_row = target.shape[: target.dim() - len(self.shape)]
        by_group = target.reshape(*per_row, self.groups, self.shape[0] // self.groups, math.prod(self.shape[1:]))
        return projected_dot(self._patches, self._d(delta), by_group)

    def square(self, delta: Tensor) -> Tensor:
        return gram_square(self._patches, self._d(delta))


def convolution(
    tape: Tape,
    func: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if isinstance(padding, str) or not tape.is_data(input) or tape.name_of(weight) is None:
        return NotImplemented
    if input.dim() != weight.dim():
        return NotImplemented
    direct = bias is None or tape.name_of(bias) is not None
    output = func(input, weight, bias if direct else None, stride, padding, dilation, groups)
    spatial = weight.dim() - 2

    def pair(value: Any, fill: int) -> tuple[int, int]:
        given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * spatial
        given = given * spatial if len(given) == 1 else given
        return (fill, given[0]) if spatial == 1 else (given[0], given[1])

    kernel = (1, weight.shape[2]) if spatial == 1 else (weight.shape[2], weight.shape[3])
    positions = output.shape[2:].numel()
    output = tape.tap(
        output,
        lambda edge: ConvolutionUse(
            tape.rows, tape.name_of(weight), tape.name_of(bias) if direct else None, edge,
            input.unsqueeze(2) if spatial == 1 else input, tuple(weight.shape), kernel,
            pair(stride, 1), pair(padding, 0), pair(dilation, 1), positions, groups,
        ),
    )  # fmt: skip
    return output if direct else tape.added(output, bias, dim=1)
