"""Convolution with a constant weight, as a pair of functions that are each other's derivative.

PyTorch's second derivative of a convolution also computes the gradient of a trainable weight, a convolution with a kernel as large as
the image, and discards it. Here the weight is never trained, which saves that third of the work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv1d_input, conv2d_input

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
