"""Counts the floating-point operations of a run, including fused kernels that PyTorch's counter misses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

Shape = Sequence[int]


def attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """FLOPs of softmax(QKᵀ)V: two products per pair of query and key; the softmax is not counted."""
    *outer, queries, width = query
    return 2 * math.prod(outer) * queries * key[-2] * (width + value[-1])


def _rnn_layer_flops(x: Shape, from_input: Shape, from_state: Shape, *_: Any, **__: Any) -> int:
    """FLOPs of one layer and direction: all weights once per step and sequence."""
    return 2 * math.prod(x[:-1]) * (math.prod(from_input) + math.prod(from_state))


def _rnn_flops(x: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    """FLOPs of all layers and directions; biases are vectors and cost no product."""
    return 2 * math.prod(x[:-1]) * sum(math.prod(weight) for weight in weights if len(weight) == 2)


FUSED: dict[Any, Callable[..., int]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
    torch.ops.aten.mkldnn_rnn_layer: _rnn_layer_flops,
    torch.ops.aten._cudnn_rnn: _rnn_flops,
}
"""Kernels that PyTorch's counter counts as zero, with their real cost."""


@contextmanager
def count_flops() -> Iterator[FlopCounterMode]:
    """Counts the operations inside the block; a multiplication and an addition count as two.

    Inside, transformer layers run operation by operation, because their fused fast path would count as zero. Attention keeps the
    kernel that the model chose, because another may lay out its result in a way the model cannot use.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
            yield counter
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
