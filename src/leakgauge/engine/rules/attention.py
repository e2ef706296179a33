"""Attention has no parameters; a rule of its own only makes its second derivative cheaper."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from leakgauge.engine.rules import twice
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
    """softmax(q kᵀ · scale) v. PyTorch's mathematical form also looks for fully masked rows; without a mask there are none."""
    plain = attn_mask is None and dropout_p == 0 and not is_causal and not enable_gqa
    if not plain or not all(tape.is_data(t) for t in (query, key, value)):
        return NotImplemented
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return tape.mark_data(twice.softmax((query * factor) @ key.transpose(-1, -2)) @ value)
