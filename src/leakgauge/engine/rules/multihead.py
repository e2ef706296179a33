"""``nn.MultiheadAttention``, and so ``nn.TransformerEncoderLayer`` and torchvision's vision transformers.

PyTorch passes it to the tape as one function, with positions before samples. Here it is written with samples first, in functions that
have rules: one linear layer for queries, keys and values, attention, one linear layer for the output.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.engine.rules.use import Recorder


def multi_head_attention(
    tape: Recorder,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Queries, keys and values (positions, samples, width). Added keys (``add_bias_kv``, ``add_zero_attn``), given keys
    (``static_k``), requested dropout of weights, and attention between samples are handled restart by restart.
    """
    drops = dropout_p if training else 0.0
    added = bias_k is not None or add_zero_attn or static_k is not None or static_v is not None
    samples_second = all(t.dim() == 3 and tape.axis(t) == 1 for t in (query, key, value))
    if not samples_second or added or (need_weights and drops > 0):
        return NotImplemented
    with tape:
        if query is key is value and in_proj_weight is not None and not use_separate_proj_weight:
            q, k, v = F.linear(query.transpose(0, 1), in_proj_weight, in_proj_bias).chunk(3, -1)
        else:
            separate = (q_proj_weight, k_proj_weight, v_proj_weight)
            weights = in_proj_weight.chunk(3) if in_proj_weight is not None else separate
            biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
            q, k, v = (
                F.linear(t.transpose(0, 1), weight, bias)  # pyright: ignore[reportArgumentType]
                for t, weight, bias in zip((query, key, value), weights, biases, strict=True)
            )
        # (samples, heads, positions, width of a head)
        q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        mask = _additive_mask(attn_mask, key_padding_mask, q, num_heads)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, drops)
        output = F.linear(mixed.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias).transpose(0, 1)
        if not need_weights:
            return output, None
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        shown = torch.softmax(scores if mask is None else scores + mask, -1)
        return output, shown.mean(1) if average_attn_weights else shown


def _additive_mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor, heads: int) -> Tensor | None:
    """Both masks as one additive mask that broadcasts to (samples, heads, queries, keys); True in a mask excludes the key."""
    mask = None
    if attn_mask is not None:
        by_sample = attn_mask.dim() == 3
        mask = _as_numbers(_of_all(attn_mask.unflatten(0, (-1, heads)), q) if by_sample else attn_mask, q)
    if key_padding_mask is not None:
        padded = _as_numbers(_of_all(key_padding_mask, q)[:, None, None], q)
        mask = padded if mask is None else mask + padded
    return mask


def _of_all(mask: Tensor, q: Tensor) -> Tensor:
    """A mask with one row per sample; refuses one that the model keeps for the samples of a single restart."""
    if len(mask) != len(q):
        raise RuntimeError(f"attention has a mask for {len(mask)} samples, but all restarts together have {len(q)}")
    return mask


def _as_numbers(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)
