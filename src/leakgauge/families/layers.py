"""Layers by kind, in the order in which the model registers them, and the classifier among them. Kinds are torch's own types."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


_HEADS = ("head", "classifier", "cls_classifier", "heads", "fc", "linear")
_SECOND_HEADS = ("head_dist", "distillation_classifier")


def find_heads(model: nn.Module, trunk: str) -> tuple[str | None, tuple[str, ...]]:
    """The head, and any further heads, of a model with a trunk whose names begin with ``trunk`` ("" or "a.b.").

    Looks for a classifier by its usual names, nearest to the trunk first. If there is none, the head is the last linear
    layer outside the trunk. A model with neither (features only) has no head.
    """
    all_linears = linear_layers(model)
    for prefix in _enclosing(trunk):
        for name in _HEADS:
            found = names_inside(prefix + name, all_linears)
            if found:
                second = [names_inside(prefix + other, all_linears) for other in _SECOND_HEADS]
                return found[-1], tuple(names[-1] for names in second if names)
    outside = [name for name in all_linears if not name.startswith(trunk)]
    return (outside[-1] if outside else None), ()


def _enclosing(trunk: str) -> Iterator[str]:
    """Prefixes from the trunk outwards: "a.b." gives "a.b.", "a.", ""."""
    parts = trunk.split(".")[:-1]
    for length in range(len(parts), -1, -1):
        yield "".join(part + "." for part in parts[:length])
