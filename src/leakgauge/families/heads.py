"""Finds the classifier, given the trunk of the network."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from leakgauge.families.layers import linear_layers, names_inside

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
