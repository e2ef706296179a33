"""Unfolding images into patches and back, as a pair of functions that are each other's derivative.

``torch.nn.functional.unfold`` computes the same but starts one kernel per image; here the whole batch is one strided copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
