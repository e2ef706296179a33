"""Vision transformers written by hand. Attention is recognised by linear layers with q, k and v in their names, in any spelling."""

from __future__ import annotations

import re
from itertools import groupby

from torch import nn

from leakgauge.families.layers import linear_layers, names_inside, weighted_layers
from leakgauge.families.multihead import join_names, roles_around
from leakgauge.families.roles import Attention, Roles
from leakgauge.families.vit import head_count

_SPELLINGS = (("queries", "keys", "values"), ("query", "key", "value"), ("q", "k", "v"))
_FUSED = re.compile(r"qkv|kqv|query_?key_?value", re.IGNORECASE)
_FUSED_IF_THREEFOLD = ("c_attn", "in_proj", "w_pack")
"""Names that other layers use too: attention only if the output is three times as wide as the input."""
_OUT = re.compile(r"out|proj|(^|_)w?_?o$", re.IGNORECASE)


def handwritten_roles(model: nn.Module) -> Roles | None:
    """None unless a patch embedding comes before the attention and all attention has the same token width (stages do not)."""
    places = dict.fromkeys(name.rpartition(".")[0] for name in linear_layers(model))
    attention = _join_heads(model, [found for place in places for found in _attention(model, place)])
    widths = {_linear(model, name).in_features for layer in attention for name in layer.layers}
    roles = roles_around(model, attention, widths.pop()) if len(widths) == 1 else None
    return None if roles is None or _filtered_before(model, roles) else roles


def _filtered_before(model: nn.Module, roles: Roles) -> bool:
    """Whether a convolution comes before a linear patch embedding, as in audio models."""
    layers = [model.get_submodule(name) for name in weighted_layers(model)]
    patches = model.get_submodule(roles.patch_embedding or "")
    before = layers[: layers.index(patches)]
    return isinstance(patches, nn.Linear) and not all(isinstance(layer, nn.Linear) for layer in before)


def _attention(model: nn.Module, place: str) -> list[Attention]:
    """The attention layers inside the module ``place``."""
    module = model.get_submodule(place)
    own = {name.lower(): name for name, child in module.named_children() if isinstance(child, nn.Linear)}
    found: list[dict[str, str]] = []
    for low, name in own.items():
        layer, others = _linear(module, name), _like_q(low, own)
        if others is not None:
            parts = dict(zip("qkv", (join_names(place, own[part]) for part in others), strict=True))
            if len({_linear(model, part).in_features for part in parts.values()}) == 1:
                found.append(parts)
        elif _FUSED.search(low) or (low in _FUSED_IF_THREEFOLD and layer.out_features == 3 * layer.in_features):
            found.append({"qkv": join_names(place, name)})
    return [attention for parts in found if (attention := _complete(model, place, parts)) is not None]


def _like_q(name: str, names: dict[str, str]) -> tuple[str, ...] | None:
    """``name`` and the two names that differ from it in one part, where it has q and they have k and v."""
    for q, k, v in _SPELLINGS:
        for at in re.finditer(q, name):
            others = (name, *(name[: at.start()] + other + name[at.end() :] for other in (k, v)))
            if all(other in names for other in others):
                return others
    return None


def _complete(model: nn.Module, place: str, parts: dict[str, str], more: tuple[str, ...] = ()) -> Attention | None:
    """Adds heads and output. None for a fused layer if neither its number of heads nor a following layer shows that it is q, k and v.

    ``more`` are the layers of further heads, three for each.
    """
    layers, made = (*parts.values(), *more), [_linear(model, name) for name in parts.values()]
    fused, count, tokens = "qkv" in parts, 1 + len(more) // 3, made[0].in_features
    heads = count if more else head_count(model.get_submodule(place))
    width, left = divmod(made[0].out_features * count, 3 if fused else 1)
    rest = [(name, _linear(model, name)) for name in _in(place, linear_layers(model)) if name not in layers]
    out = [name for name, layer in rest if (layer.in_features, layer.out_features) == (width, tokens)]
    if fused and (left or (width % heads if heads else not out)):
        return None
    named = [name for name in out if _OUT.search(name.removeprefix(f"{place}."))]
    output = out[0] if len(out) == 1 else next(iter(named), None)
    others = any(name not in (*layers, output) for name in _in(place, weighted_layers(model)))
    return Attention(place, heads=heads, out=output, more=more, beside_others=others, **parts)


def _join_heads(model: nn.Module, found: list[Attention]) -> tuple[Attention, ...]:
    """Join heads that are separate modules in a list into one attention: together their outputs are as wide as their input."""
    attention: list[Attention] = []
    for place, group in groupby(found, lambda layer: layer.name.rpartition(".")[0]):
        first, *others = each = list(group)
        layer, listed = _linear(model, first.layers[0]), isinstance(model.get_submodule(place), nn.ModuleList)
        bare = all(head.q is not None and head.out is None and not head.beside_others for head in each)
        if others and listed and bare and len(each) * layer.out_features == layer.in_features:
            parts = dict(zip("qkv", first.layers, strict=True))
            more = tuple(name for head in others for name in head.layers)
            each = filter(None, [_complete(model, place.rpartition(".")[0], parts, more)])
        attention += each
    return tuple(attention)


def _in(place: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return names_inside(place, names) if place else names


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer
