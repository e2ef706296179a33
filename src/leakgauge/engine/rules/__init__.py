"""Layer rules: one file per kind of layer, keyed by the torch function that the layer calls."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from leakgauge.engine.rules.activation import gelu
from leakgauge.engine.rules.attention import attention
from leakgauge.engine.rules.convolution import convolution
from leakgauge.engine.rules.embedding import embedding
from leakgauge.engine.rules.linear import linear
from leakgauge.engine.rules.multihead import multi_head_attention
from leakgauge.engine.rules.normalisation import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from leakgauge.engine.rules.use import Use

RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: linear,
    F.conv1d: convolution,
    F.conv2d: convolution,
    F.layer_norm: layer_norm,
    F.rms_norm: rms_norm,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
    F.batch_norm: batch_norm,
    F.embedding: embedding,
    F.gelu: gelu,
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: multi_head_attention,
}
"""``rule(tape, function, *arguments)``; NotImplemented means that it does not apply and the parameter must be lifted."""

LEADING: set[Callable[..., Any]] = {
    F.linear, F.layer_norm, F.rms_norm, F.embedding, F.gelu, F.scaled_dot_product_attention,
}  # fmt: skip
"""Functions that treat all leading dimensions equally: samples in another dimension can be moved first and back."""

__all__ = ["LEADING", "RULES", "Use"]
