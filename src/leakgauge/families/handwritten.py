"""Vision transformers written by hand: attention is known by linear layers whose names say q, k and v, in any spelling."""

from __future__ import annotations

import re
from itertools import groupby

from torch import nn

from leakgauge.families.layers import inside, linears, weighted
from leakgauge.families.multihead import joined, roles_around
from leakgauge.families.roles import Attention, Roles
from leakgauge.families.vit import head_count

_SPELLINGS = (("queries", "keys", "values"), ("query", "key", "value"), ("q", "k", "v"))
_FUSED = re.compile(r"qkv|kqv|query_?key_?value", re.IGNORECASE)
_FUSED_IF_THREEFOLD = ("c_attn", "in_proj", "w_pack")
"""Names that other layers have as well: attention only where the output is three times as wide as the input."""
_OUT = re.compile(r"out|proj|(^|_)w?_?o$", re.IGNORECASE)


def handwritten_roles(model: nn.Module) -> Roles | None:
    """None unless a patch embedding comes before the attention, all of which reads tokens of one width (stages do not)."""
    places = dict.fromkeys(name.rpartition(".")[0] for name in linears(model))
    attention = _heads_joined(model, [found for place in places for found in _attention(model, place)])
    widths = {_linear(model, name).in_features for layer in attention for name in layer.layers}
    roles = roles_around(model, attention, widths.pop()) if len(widths) == 1 else None
    return None if roles is None or _filtered_before(model, roles) else roles


def _filtered_before(model: nn.Module, roles: Roles) -> bool:
    """Whether a convolution comes before a patch embedding that is a linear layer, as in models of sound."""
    layers = [model.get_submodule(name) for name in weighted(model)]
    patches = model.get_submodule(roles.patch_embedding or "")
    before = layers[: layers.index(patches)]
    return isinstance(patches, nn.Linear) and not all(isinstance(layer, nn.Linear) for layer in before)


def _attention(model: nn.Module, place: str) -> list[Attention]:
    """Those whose layers lie in the module ``place``."""
    module = model.get_submodule(place)
    own = {name.lower(): name for name, child in module.named_children() if isinstance(child, nn.Linear)}
    found: list[dict[str, str]] = []
    for low, name in own.items():
        layer, others = _linear(module, name), _like_q(low, own)
        if others is not None:
            parts = dict(zip("qkv", (joined(place, own[part]) for part in others), strict=True))
            if len({_linear(model, part).in_features for part in parts.values()}) == 1:
                found.append(parts)
        elif _FUSED.search(low) or (low in _FUSED_IF_THREEFOLD and layer.out_features == 3 * layer.in_features):
            found.append({"qkv": joined(place, name)})
    return [attention for parts in found if (attention := _completed(model, place, parts)) is not None]


def _like_q(name: str, names: dict[str, str]) -> tuple[str, ...] | None:
    """``name`` and the two that differ from it in one part alone, which reads q in it and k and v in them."""
    for q, k, v in _SPELLINGS:
        for at in re.finditer(q, name):
            others = (name, *(name[: at.start()] + other + name[at.end() :] for other in (k, v)))
            if all(other in names for other in others):
                return others
    return None


def _completed(model: nn.Module, place: str, parts: dict[str, str], more: tuple[str, ...] = ()) -> Attention | None:
    """With heads and output; None for a fused layer that no number of heads and no layer after it take for three in one.

    ``more`` are the layers of further heads, three for each.
    """
    layers, made = (*parts.values(), *more), [_linear(model, name) for name in parts.values()]
    fused, count, tokens = "qkv" in parts, 1 + len(more) // 3, made[0].in_features
    heads = count if more else head_count(model.get_submodule(place))
    width, left = divmod(made[0].out_features * count, 3 if fused else 1)
    rest = [(name, _linear(model, name)) for name in _in(place, linears(model)) if name not in layers]
    out = [name for name, layer in rest if (layer.in_features, layer.out_features) == (width, tokens)]
    if fused and (left or (width % heads if heads else not out)):
        return None
    named = [name for name in out if _OUT.search(name.removeprefix(f"{place}."))]
    output = out[0] if len(out) == 1 else next(iter(named), None)
    others = any(name not in (*layers, output) for name in _in(place, weighted(model)))
    return Attention(place, heads=heads, out=output, more=more, beside_others=others, **parts)


def _heads_joined(model: nn.Module, found: list[Attention]) -> tuple[Attention, ...]:
    """Heads that are modules of their own in a list are one attention: their outputs are together as wide as their input."""
    attention: list[Attention] = []
    for place, group in groupby(found, lambda layer: layer.name.rpartition(".")[0]):
        first, *others = each = list(group)
        layer, listed = _linear(model, first.layers[0]), isinstance(model.get_submodule(place), nn.ModuleList)
        bare = all(head.q is not None and head.out is None and not head.beside_others for head in each)
        if others and listed and bare and len(each) * layer.out_features == layer.in_features:
            parts = dict(zip("qkv", first.layers, strict=True))
            more = tuple(name for head in others for name in head.layers)
            each = filter(None, [_completed(model, place.rpartition(".")[0], parts, more)])
        attention += each
    return tuple(attention)


def _in(place: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return inside(place, names) if place else names


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer
