"""Layer normalisation, GELU and softmax with second derivatives written by hand.

PyTorch differentiates their backward passes through dozens of small kernels. By hand it takes a few, most of them fused.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakgauge.engine.fused import chain


def normalise(x: Tensor, shape: tuple[int, ...], eps: float) -> Tensor:
    """n = (x − mean) · r over the last dimensions ``shape``, r = 1/√(variance + eps); differentiable twice."""
    output: tuple[Tensor, Tensor] = _Normalise.apply(x, shape, eps)
    return output[0]


def _centre(g: Tensor, n: Tensor, shape: tuple[int, ...]) -> Tensor:
    """g − mean(g) − n · mean(g · n): g without the shift and the scale that normalisation removes."""
    lead = n.shape[: n.dim() - len(shape)]
    none, one = n.new_zeros(*lead, *[1] * len(shape)), n.new_ones(*lead, *[1] * len(shape))
    mask = [True, False, False]
    return torch.ops.aten.native_layer_norm_backward(g.contiguous(), n, shape, none, one, None, None, mask)[0]


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
        n, _, r = torch.native_layer_norm(x, shape, None, None, eps)
        r = r.to(n.dtype)
        ctx.shape = shape
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(n, r)
        return n, r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (n, r), (of_n, of_r) = ctx.saved_tensors, grads
        if of_n is not None and of_r is not None and not torch.is_grad_enabled():
            return _both_slopes(of_n, of_r, n, r, ctx.shape), None, None
        slope = None if of_n is None else _Slope.apply(of_n, n, r, ctx.shape)
        if of_r is not None:
            through_r = _through_scale(of_r, n, r, ctx.shape)
            slope = through_r if slope is None else slope + through_r
        return slope, None, None


def _through_scale(of_r: Tensor, n: Tensor, r: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The incoming gradient of r as a slope of x: ∂r/∂x = −r² · n / (number of values)."""
    return n * (of_r * r.square() / -math.prod(shape))


@chain
def _both_slopes(of_n: Tensor, of_r: Tensor, n: Tensor, r: Tensor, shape: tuple[int, ...]) -> Tensor:
    return (_centre(of_n, n, shape) * r).add_(_through_scale(of_r, n, r, shape))


@chain
def _slope(g: Tensor, n: Tensor, r: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    centred = _centre(g, n, shape)
    return centred * r, centred


@chain
def _slopes_of_slope(
    u: Tensor, g: Tensor, n: Tensor, r: Tensor, centred: Tensor, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of r · (g − mean(g) − n · mean(g · n)) in g, n and r, with incoming gradient u."""
    dims = tuple(range(-len(shape), 0))
    up = u * r
    of_n = torch.addcmul(up * (g * n).mean(dims, keepdim=True), g, (up * n).mean(dims, keepdim=True)).neg_()
    return _centre(up, n, shape), of_n, (u * centred).sum(dims, keepdim=True)


class _Slope(torch.autograd.Function):
    """r · (g − mean(g) − n · mean(g · n)) as a function of g, n and r."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, n: Tensor, r: Tensor, shape: tuple[int, ...]) -> Tensor:
        slope, centred = _slope(g, n, r, shape)
        ctx.shape = shape
        ctx.save_for_backward(g, n, r, centred)
        return slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        g, n, r, centred = ctx.saved_tensors
        return *_slopes_of_slope(grads[0], g, n, r, centred, ctx.shape), None


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x), differentiable twice."""
    return _Gelu.apply(x)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _GeluSlope.apply(grads[0], *ctx.saved_tensors)


class _GeluSlope(torch.autograd.Function):
    """g · (Φ(x) + x · φ(x)); its derivative in x is g · φ(x) · (2 − x²)."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(g, x)
        return torch.ops.aten.gelu_backward(g, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        g, x = ctx.saved_tensors
        return _slopes_of_gelu_slope(grads[0], g, x)


@chain
def _slopes_of_gelu_slope(u: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    square = x.square()
    density = torch.rsub(square, -0.5 * math.log(2 * math.pi), alpha=0.5).exp_()
    return torch.ops.aten.gelu_backward(u, x), density.mul_(torch.rsub(square, 2)).mul_(u).mul_(g)


def softmax(x: Tensor) -> Tensor:
    """exp(x) / Σ exp(x) over the last dimension, differentiable twice."""
    return _Softmax.apply(x)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        p = torch.softmax(x, -1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _SoftmaxSlope.apply(grads[0], *ctx.saved_tensors)


class _SoftmaxSlope(torch.autograd.Function):
    """p ∘ (g − Σ g∘p). Its derivatives with incoming gradient u: p ∘ (u − Σ u∘p) in g, and (u − Σ u∘p) ∘ g − u · Σ g∘p in p."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, p: Tensor) -> Tensor:
        ctx.save_for_backward(g, p)
        return torch.ops.aten._softmax_backward_data(g, p, -1, p.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (g, p), u = ctx.saved_tensors, grads[0]
        of_u, of_g = (u * p).sum(-1, keepdim=True), (g * p).sum(-1, keepdim=True)
        of_p = torch.addcmul(u * of_g.neg_(), u - of_u, g)
        return torch.ops.aten._softmax_backward_data(u, p, -1, p.dtype), of_p
