"""Attention has no parameters; its rule only makes the second derivative cheaper.

With S = c·q kᵀ, P = softmax(S), o = P v, and u the incoming gradient of o:

    ∂v = Pᵀ u        ∂P = u vᵀ        ∂S = P ∘ (∂P − Σ ∂P∘P)        ∂q = c·∂S k        ∂k = c·∂Sᵀ q
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from leakgauge.engine.fused import chain
from leakgauge.engine.rules import twice
from leakgauge.engine.rules.products import pad_rows, padding_rows, plain_types
from leakgauge.engine.rules.use import Recorder


def attention(
    tape: Recorder,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q kᵀ · scale) v. PyTorch's math kernel also checks for fully masked rows; without a mask there are none."""
    plain = attn_mask is None and dropout_p == 0 and not is_causal and not enable_gqa
    if not plain or not all(tape.is_data(t) for t in (query, key, value)):
        return NotImplemented
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if not plain_types(query, key, value) or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return tape.mark_data(twice.softmax((query * factor) @ key.transpose(-1, -2)) @ value)
    q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in (query, key, value))
    found = attend(q, k, v, factor)
    return tape.mark_data(found.view(*query.shape[:-1], value.shape[-1]))


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v for pages (N, queries, width), (N, keys, width) and (N, keys, any); differentiable twice."""
    return _Attention.apply(q, k, v, scale, padding_rows(k.shape[1], k.device))


def _times(left: Tensor, right: Tensor, factor: float, onto: Tensor | None = None) -> Tensor:
    """factor · left @ right, added to ``onto`` in place if that is given."""
    if onto is not None:
        return onto.baddbmm_(left, right, alpha=factor)
    return torch.baddbmm(left.new_empty(1, 1, 1), left, right, beta=0, alpha=factor)


class _Attention(torch.autograd.Function):
    """Keys and values get ``extra`` rows of zeros that no query attends to."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, extra: int) -> Tensor:
        long_k, long_v = pad_rows(k, extra), pad_rows(v, extra)
        scores = _times(q, long_k.transpose(1, 2), scale)
        if extra:
            scores[..., k.shape[1] :] = -math.inf
        p = torch.softmax(scores, -1)
        ctx.scale, ctx.extra = scale, extra
        ctx.save_for_backward(q, k, v, p)
        return p @ long_v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_AttentionSlope.apply(grads[0], *ctx.saved_tensors, ctx.scale, ctx.extra), None, None


class _AttentionSlope(torch.autograd.Function):
    """∂q, ∂k and ∂v as functions of u, q, k and v. The derivative includes that P depends on q and k.

    With A, B, C the incoming gradients of ∂q, ∂k, ∂v, and X = c·(A kᵀ + q Bᵀ) for ∂S, Y = P ∘ (X − Σ X∘P) for ∂P,
    Z = u Cᵀ + (X − Σ X∘P) ∘ ∂P − X · Σ ∂P∘P for P, W = P ∘ (Z − Σ Z∘P) for S:

        of u: P C + Y v        of q: c·(∂S B + W k)        of k: c·(∂Sᵀ A + Wᵀ q)        of v: Yᵀ u
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, q: Tensor, k: Tensor, v: Tensor, p: Tensor, scale: float, extra: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        keys = k.shape[1]
        of_p = u @ pad_rows(v, extra).transpose(1, 2)
        of_s = torch.ops.aten._softmax_backward_data(of_p, p, -1, p.dtype)
        ctx.scale, ctx.extra = scale, extra
        ctx.save_for_backward(u, q, k, v, p, of_p, of_s)
        of_q = _times(of_s, pad_rows(k, extra), scale)
        of_k = _times(of_s.transpose(1, 2), q, scale)
        return of_q, of_k[:, :keys], (p.transpose(1, 2) @ u)[:, :keys]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        u, q, k, v, p, of_p, of_s = ctx.saved_tensors
        keys, scale = k.shape[1], ctx.scale
        k, v, b, c = (pad_rows(t, ctx.extra) for t in (k, v, grads[1], grads[2]))
        a = grads[0]
        x = _times(q, b.transpose(1, 2), scale, _times(a, k.transpose(1, 2), scale))
        y, w = _between_products(x, u @ c.transpose(1, 2), p, of_p)
        of_u = _times(y, v, 1.0, p @ c)
        of_v = (y.transpose(1, 2) @ u)[:, :keys]
        of_q = _times(w, k, scale, _times(of_s, b, scale))
        of_k = _times(w.transpose(1, 2), q, scale, _times(of_s.transpose(1, 2), a, scale))
        return of_u, of_q, of_k[:, :keys], of_v, None, None, None


@chain
def _between_products(x: Tensor, uc: Tensor, p: Tensor, of_p: Tensor) -> tuple[Tensor, Tensor]:
    """Y and W of :class:`_AttentionSlope` from X, u Cᵀ, P and ∂P."""
    y = torch.ops.aten._softmax_backward_data(x, p, -1, p.dtype)
    seen_x, seen_p = (x * p).sum(-1, keepdim=True), (of_p * p).sum(-1, keepdim=True)
    z = torch.addcmul(uc, x - seen_x, of_p).addcmul_(x, seen_p, value=-1)
    return y, torch.ops.aten._softmax_backward_data(z, p, -1, p.dtype)
