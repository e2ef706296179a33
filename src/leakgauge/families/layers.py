"""Layers by kind, in the order in which the model registers them. Kinds are torch's own types."""

from __future__ import annotations

import re

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

_NORM_TYPES = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_NORM_CLASS = re.compile(r"(batch|layer|group|instance|rms)norm(act)?(\dd)?$", re.IGNORECASE)


def weighted_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of all convolutions and linear layers."""
    return tuple(name for name, module in model.named_modules() if isinstance(module, _ConvNd | nn.Linear))


def linear_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of all linear layers."""
    return tuple(name for name, module in model.named_modules() if isinstance(module, nn.Linear))


def norm_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of all normalisation layers: torch's own, and others named like one (``LlamaRMSNorm``)."""
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, _NORM_TYPES) or _NORM_CLASS.search(type(module).__name__)
    )


def names_inside(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``names`` that are ``name`` or inside it."""
    return tuple(other for other in names if other == name or other.startswith(name + "."))
