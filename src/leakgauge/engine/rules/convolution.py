"""Convolutions, as a linear layer on unfolded patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from leakgauge.engine.rules.constant import convolve
from leakgauge.engine.rules.grouped import weight_gradients
from leakgauge.engine.rules.patches import Pair, patches
from leakgauge.engine.rules.products import gram_is_cheaper, two_numbers
from leakgauge.engine.rules.use import Recorder, Use

FEW_CHANNELS = 4
POINTWISE = ((1, 1), (1, 1), (0, 0), (1, 1))


@dataclass(frozen=True, eq=False)
class ConvolutionUse(Use):
    """z = W ⋆ a + b for ``a`` (rows·batch, channels, height, width); a 1-d convolution has height 1.

    With G groups there are G such layers in parallel: patches (R, G, n, inputs) and δ (R, G, n, outputs), n = batch·positions.
    """

    a: Tensor
    shape: tuple[int, ...]
    """Shape of the weight in the model."""
    how: tuple[Pair, Pair, Pair, Pair]
    """Kernel, dilation, padding, stride."""
    positions: int
    groups: int
    unfolded: Tensor | None
    """Patches of ``a``, if the layer itself has already computed them."""

    @cached_property
    def _patches(self) -> Tensor:
        if self.unfolded is not None:
            return self._by_restart(self.unfolded)
        if self.how == POINTWISE:
            return self._by_restart(self.a.flatten(2))
        return self._by_restart(patches(self.a, *self.how))

    def _by_restart(self, maps: Tensor) -> Tensor:
        """(rows·batch, groups·k, positions) as (R, G, n, k)."""
        split = maps.unflatten(1, (self.groups, -1)).unflatten(0, (self.rows, -1))  # (R, B, G, k, L)
        if split.shape[1] == 1:
            return split[:, 0].transpose(-1, -2)
        return split.permute(0, 2, 1, 4, 3).flatten(2, 3)

    def _d(self, delta: Tensor) -> Tensor:
        return self._by_restart(delta.flatten(2))

    def weight_gradient(self, delta: Tensor) -> Tensor:
        _, dilation, padding, stride = self.how
        if self.a.device.type == "cpu" and len(self.shape) == 4 and not self.prefers_gram():
            how = (stride, padding, dilation)
            return weight_gradients(self.a, delta, rows=self.rows, shape=self.shape, how=how, groups=self.groups)
        return (self._d(delta).transpose(-1, -2) @ self._patches).reshape(self.rows, *self.shape)

    def bias_gradient(self, delta: Tensor) -> Tensor:
        return self._d(delta).sum(2).flatten(1)

    def prefers_gram(self) -> bool:
        n = len(self.a) // self.rows * self.positions
        return gram_is_cheaper(n, math.prod(self.shape[1:]), self.shape[0] // self.groups)

    def numbers(self, delta: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        per_row = target.shape[: target.dim() - len(self.shape)]
        by_group = target.reshape(*per_row, self.groups, self.shape[0] // self.groups, math.prod(self.shape[1:]))
        return two_numbers(self._patches, self._d(delta), by_group)


def by_patches(
    x: Tensor, weight: Tensor, bias: Tensor | None, how: tuple[Pair, Pair, Pair, Pair], groups: int
) -> tuple[Tensor, Tensor]:
    """The layer as a product with the patches of its input, and those patches. The few channels of a first layer leave GPU
    convolution kernels mostly idle, and its patches are needed anyway.
    """
    unfolded = patches(x, *how)
    split = unfolded.unflatten(1, (groups, -1))  # (N, G, k, L)
    flat = weight.reshape(groups, len(weight) // groups, -1) @ split
    kernel, dilation, padding, stride = how
    height, width = (
        (length + 2 * p - d * (k - 1) - 1) // s + 1
        for length, k, d, p, s in zip(x.shape[2:], kernel, dilation, padding, stride, strict=True)
    )
    output = flat.reshape(len(x), len(weight), height, width)
    return output if bias is None else output + bias.view(-1, 1, 1), unfolded


def convolution(
    tape: Recorder,
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
    spatial = weight.dim() - 2

    def pair(value: Any, fill: int) -> tuple[int, int]:
        given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * spatial
        given = given * spatial if len(given) == 1 else given
        return (fill, given[0]) if spatial == 1 else (given[0], given[1])

    kernel = (1, weight.shape[2]) if spatial == 1 else (weight.shape[2], weight.shape[3])
    how = (kernel, pair(dilation, 1), pair(padding, 0), pair(stride, 1))
    unfolded = None
    if spatial == 2 and input.shape[1] <= FEW_CHANNELS and input.device.type == "cuda":
        output, unfolded = by_patches(input, weight, bias if direct else None, how, groups)
    else:
        output = convolve(input, weight, bias if direct else None, stride, padding, dilation, groups)
    positions = output.shape[2:].numel()
    output = tape.tap(
        output,
        lambda edge: ConvolutionUse(
            tape.rows, tape.name_of(weight), tape.name_of(bias) if direct else None, edge,
            input.unsqueeze(2) if spatial == 1 else input, tuple(weight.shape), how, positions, groups, unfolded,
        ),
    )  # fmt: skip
    return output if direct else tape.add_bias(output, bias, dim=1)
