"""Residual networks as named by torchvision, timm and Hugging Face, also inside wrappers that prefix the names."""

from __future__ import annotations

import re

from torch import nn

from leakgauge.families.layers import find_heads, linear_layers, norm_layers, weighted_layers
from leakgauge.families.roles import Roles

_BLOCK = re.compile(
    r"(?P<trunk>(?:.+\.)?)(?:"
    r"layer\d+\.\d+\.conv1"  # torchvision, timm, and the CIFAR variants that follow them
    r"|stages\.\d+\.blocks\.\d+\.conv1"  # timm ResNetV2 (pre-activation)
    r"|encoder\.stages\.\d+\.layers\.\d+\.layer\.0\.convolution"  # Hugging Face
    r")"
)
_IN_BLOCK = re.compile(r"(?:^|\.)(?:layer\d+|stages\.\d+)\.")


def resnet_roles(model: nn.Module) -> Roles | None:
    """None unless there are residual blocks. Linear layers inside these (squeeze and excite) are not heads."""
    layers = weighted_layers(model)
    block = next(filter(None, map(_BLOCK.fullmatch, layers)), None)
    if block is None:
        return None
    trunk = block["trunk"]
    head, other_heads = find_heads(model, trunk)
    unnamed = [name for name in linear_layers(model) if not _IN_BLOCK.search(name)]
    return Roles(
        family="resnet",
        head=head if head is not None or not unnamed else unnamed[-1],
        first_layer=next(name for name in layers if name.startswith(trunk)),
        norms=norm_layers(model),
        other_heads=other_heads,
    )
