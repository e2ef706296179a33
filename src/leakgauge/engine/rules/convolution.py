"""Convolutions, as a linear layer on unfolded patches.

Unfolding and folding are a pair of functions that are each other's derivative; ``torch.nn.functional.unfold`` computes the same but starts
one kernel per image, here the whole batch is one strided copy. So is convolution with a constant weight: PyTorch's second derivative of a
convolution also computes the gradient of a trainable weight, a convolution with a kernel as large as the image, and discards it. Here the
weight is never trained, which saves that third of the work.

On a CPU and for large maps the weight gradients of all restarts are one grouped convolution: CPU convolutions are as efficient as matrix
products and do not copy the image nine times. For small maps with many channels the product of patches is faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv1d_input, conv2d_input, conv2d_weight

from leakgauge.engine.rules.products import gram_is_cheaper, two_numbers
from leakgauge.engine.rules.use import Recorder, Use

Pair = tuple[int, int]


def patches(x: Tensor, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> Tensor:
    """(N, C, H, W) to (N, C·kernel, positions), differentiable any number of times."""
    return _Unfold.apply(x, kernel, dilation, padding, stride)


class _Unfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> Tensor:
        ctx.size, ctx.how = tuple(x.shape[2:]), (kernel, dilation, padding, stride)
        if padding != (0, 0):
            x = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))
        count, channels, height, width = x.shape
        out = [
            (length - d * (k - 1) - 1) // s + 1
            for length, k, d, s in zip((height, width), kernel, dilation, stride, strict=True)
        ]
        n, c, h, w = x.stride()
        steps = (n, c, h * dilation[0], w * dilation[1], h * stride[0], w * stride[1])
        view = x.as_strided((count, channels, *kernel, *out), steps)
        return view.reshape(count, channels * kernel[0] * kernel[1], out[0] * out[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Fold.apply(grads[0], ctx.size, *ctx.how), None, None, None, None


class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, columns: Tensor, size: Pair, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair
    ) -> Tensor:
        ctx.how = (kernel, dilation, padding, stride)
        return F.fold(columns, size, kernel, dilation, padding, stride)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Unfold.apply(grads[0], *ctx.how), None, None, None, None, None


_FORWARD = {1: F.conv1d, 2: F.conv2d}
_BACKWARD = {1: conv1d_input, 2: conv2d_input}


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    """``F.conv1d`` or ``F.conv2d`` by the weight's dimensions, differentiable in x only, any number of times."""
    output: Tensor = _Convolve.apply(x, weight, stride, padding, dilation, groups)
    return output if bias is None else output + bias.view(-1, *[1] * (weight.dim() - 2))


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *how: Any) -> Tensor:
        ctx.weight, ctx.size, ctx.dtype, ctx.how = weight, x.shape, x.dtype, how
        return _FORWARD[weight.dim() - 2](x, weight, None, *how)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        slope: Tensor = _Transposed.apply(grads[0], ctx.weight, ctx.size, *ctx.how)
        return slope.to(ctx.dtype), *[None] * 5  # under autocast the layer computes in a smaller type than its input


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor, size: torch.Size, *how: Any) -> Tensor:
        ctx.weight, ctx.dtype, ctx.how = weight, grad.dtype, how
        return _BACKWARD[weight.dim() - 2](size, weight.to(grad.dtype), grad, *how)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        slope: Tensor = _Convolve.apply(grads[0], ctx.weight, *ctx.how)
        return slope.to(ctx.dtype), *[None] * 6


How = tuple[Pair, Pair, Pair]
"""Stride, padding, dilation."""


def weight_gradients(a: Tensor, delta: Tensor, *, rows: int, shape: tuple[int, ...], how: How, groups: int) -> Tensor:
    """(R, *shape) for inputs a (R·B, C, H, W) and output derivatives δ (R·B, O, H', W'); differentiable once."""
    out: Tensor = _WeightGradients.apply(_side_by_side(a, rows), _side_by_side(delta, rows), rows, shape, how, groups)
    return out


def _side_by_side(maps: Tensor, rows: int) -> Tensor:
    """(R·B, C, …) as (B, R·C, …); just a view for a batch of one."""
    return maps.unflatten(0, (rows, -1)).transpose(0, 1).flatten(1, 2)


class _WeightGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, delta: Tensor, rows: int, shape: tuple[int, ...], how: How, groups: int) -> Tensor:
        ctx.save_for_backward(a, delta)
        arguments: Any = (*how, rows * groups)  # torch's annotations only allow integers, not pairs
        ctx.how = arguments
        size = torch.Size((rows * shape[0], *shape[1:]))
        return conv2d_weight(a, size, delta, *arguments).view(rows, *shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, delta = ctx.saved_tensors
        weight = grads[0].flatten(0, 1)
        of_a = conv2d_input(a.shape, weight, delta, *ctx.how)
        of_delta = F.conv2d(a, weight, None, *ctx.how)
        return of_a, of_delta, None, None, None, None


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
