"""Weight gradients of a convolution for all restarts at once, as one grouped convolution.

On a CPU and for large maps this is faster than multiplying unfolded patches: CPU convolutions are as efficient as matrix products and
do not copy the image nine times. For small maps with many channels the product of patches is faster.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input, conv2d_weight

from leakgauge.engine.rules.patches import Pair

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
