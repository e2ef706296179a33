"""Vision transformers built on ``nn.MultiheadAttention``, recognised by structure and not by names: torchvision's, OpenAI's CLIP, and
anything built on ``nn.TransformerEncoder``."""

from __future__ import annotations

import re

from torch import nn

from leakgauge.families.layers import find_heads, linear_layers, names_inside, norm_layers, weighted_layers
from leakgauge.families.roles import Attention, Roles

_CLASS_TOKEN = re.compile(r"cls|class", re.IGNORECASE)
_POSITION = re.compile(r"pos", re.IGNORECASE)


def multihead_roles(model: nn.Module) -> Roles | None:
    """None unless convolutions, or a linear layer, come before the first attention and end in its width.

    Text models have other roles: a model that looks up tokens in an ``nn.Embedding`` before that does not match.
    """
    attention = _self_attention(model)
    if not attention:
        return None
    return roles_around(model, attention, getattr(model.get_submodule(attention[0].name), "embed_dim", 0))


def roles_around(model: nn.Module, attention: tuple[Attention, ...], width: int) -> Roles | None:
    """The other roles of a model with known ``attention`` of token width ``width``; None if it does not read patches."""
    first = attention[0].name
    stem = _stem(model, attention[0].layers or (first,), width)
    if not stem or _looks_words_up(model, {width, getattr(model.get_submodule(stem[0]), "in_features", width)}):
        return None
    rows = _learned_rows(model, width)
    tables = sorted((name for name in rows if rows[name] > 1), key=lambda name: -rows[name])  # registers are fewer
    head, other_heads = find_heads(model, _shared_place(stem[0], first))
    return Roles(
        family="vit",
        head=head if head is not None else _unnamed_head(model, attention, stem),
        first_layer=stem[0],
        patch_embedding=stem[-1],
        position_embedding=_prefer(tables, _POSITION),
        class_token=_prefer([name for name in rows if rows[name] == 1], _CLASS_TOKEN),
        attention=attention,
        norms=norm_layers(model),
        other_heads=other_heads,
    )


def _self_attention(model: nn.Module) -> tuple[Attention, ...]:
    """Layers with keys and values as wide as their queries; other layers cannot read the same tokens three times.

    ``nn.TransformerEncoder`` copies the layer it gets. If the model also keeps that layer, it is a template that never runs.
    """
    modules = dict(model.named_modules())
    stacks = [name for name, module in modules.items() if isinstance(module, nn.TransformerEncoder)]
    layers = [name for name, module in modules.items() if isinstance(module, nn.TransformerEncoderLayer)]
    patterns = [name for name in layers if stacks and not any(_within(stack, name) for stack in stacks)]
    return tuple(
        Attention(
            name, heads=module.num_heads, packed=join_names(name, "in_proj_weight"), out=join_names(name, "out_proj")
        )
        for name, module in modules.items()
        if isinstance(module, nn.MultiheadAttention)
        and isinstance(module.in_proj_weight, nn.Parameter)
        and not any(_within(pattern, name) for pattern in patterns)
    )


def _stem(model: nn.Module, first_attention: tuple[str, ...], width: int) -> tuple[str, ...]:
    """The convolutions before the first attention if the last one has ``width`` outputs, else the first linear layer that does."""
    order = list(dict(model.named_modules()))
    before = order[: min(map(order.index, first_attention))]
    layers = [(name, model.get_submodule(name)) for name in before]
    convolutions = [(name, layer.out_channels) for name, layer in layers if isinstance(layer, nn.Conv1d | nn.Conv2d)]
    if convolutions:
        return tuple(name for name, _ in convolutions) if convolutions[-1][1] == width else ()
    return tuple(name for name, layer in layers if isinstance(layer, nn.Linear) and layer.out_features == width)[:1]


def _learned_rows(model: nn.Module, width: int) -> dict[str, int]:
    """The number of rows of ``width`` in each parameter that belongs to no layer: tokens and position tables."""
    found: dict[str, int] = {}
    layers = {*weighted_layers(model), *norm_layers(model)}
    for place, module in model.named_modules():
        if place in layers or isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            flat = parameter.dim() == 1 and not _CLASS_TOKEN.search(name)  # such as the scale of a norm
            if parameter.dim() and parameter.shape[-1] == width and not flat:
                found[join_names(place, name)] = parameter.numel() // width
    return found


def _unnamed_head(model: nn.Module, attention: tuple[Attention, ...], stem: tuple[str, ...]) -> str | None:
    """The last linear layer that is neither in the stem nor in a block with attention."""
    around = {place for layer in attention for place in (layer.name.rpartition(".")[0], layer.name)}
    blocks = [place for place in around if not _within(place, stem[0])]
    blocks += [place for layer in attention for place in layer.places]
    rest = [
        name for name in linear_layers(model) if name not in stem and not any(_within(block, name) for block in blocks)
    ]
    return rest[-1] if rest else None


def _looks_words_up(model: nn.Module, widths: set[int]) -> bool:
    tables = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    return any(table.embedding_dim in widths and not _POSITION.search(name) for name, table in tables)


def _prefer(names: list[str], pattern: re.Pattern[str]) -> str | None:
    """The first name that matches the pattern, else the first name."""
    return next(filter(pattern.search, names), names[0] if names else None)


def _shared_place(one: str, other: str) -> str:
    """The common prefix of two names: "a.b." for "a.b.c" and "a.b.d.e"."""
    shared = ""
    for a, b in zip(one.split(".")[:-1], other.split(".")[:-1], strict=False):
        if a != b:
            break
        shared += f"{a}."
    return shared


def _within(place: str, name: str) -> bool:
    """Whether ``name`` is ``place`` or inside it; the root is named ""."""
    return not place or bool(names_inside(place, (name,)))


def join_names(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
