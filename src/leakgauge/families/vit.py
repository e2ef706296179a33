"""Plain vision transformers: ours, timm's (ViT, DeiT, EVA) and Hugging Face's (ViT, DeiT, BEiT, DINOv2, SigLIP, CLIP).

Hierarchical ones (Swin and the like) do not match: their blocks are grouped in stages, and their roles mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from leakgauge.families.layers import find_heads, names_inside, norm_layers, weighted_layers
from leakgauge.families.roles import Attention, Roles


@dataclass(frozen=True)
class Layout:
    """How one library names the parts, relative to the trunk; q, k, v and out relative to the attention layer.

    ``entry`` is the layer that makes tokens of patches or words, ``attention`` a regular expression.
    """

    entry: str
    position: str
    attention: str
    out: str
    qkv: str | None = None
    q: str | None = None
    k: str | None = None
    v: str | None = None
    class_token: str = ""

    @property
    def first(self) -> str | None:
        return self.qkv or self.q


_PATCHES, _PLACES, _CLASS = "embeddings.patch_embeddings", "embeddings.position_embeddings", "embeddings.cls_token"
_LAYOUTS = (
    Layout("patch_embed", "pos_embed", r"blocks\.\d+\.attn", "proj", qkv="qkv", class_token="cls_token"),  # ours, timm
    Layout("patch_embed", "pos_embed", r"blocks\.\d+\.attn", "proj", None, "q_proj", "k_proj", "v_proj", "cls_token"),
    Layout(  # transformers 5
        _PATCHES, _PLACES, r"(layers|encoder\.layers?)\.\d+\.attention", "o_proj", None, "q_proj", "k_proj", "v_proj", _CLASS,
    ),
    Layout(  # SigLIP and CLIP in transformers
        "embeddings.patch_embedding", "embeddings.position_embedding.weight", r"encoder\.layers\.\d+\.self_attn", "out_proj",
        None, "q_proj", "k_proj", "v_proj", "embeddings.class_embedding",
    ),
    Layout(  # transformers 4
        _PATCHES, _PLACES, r"encoder\.layer\.\d+\.attention", "output.dense", None, "attention.query", "attention.key",
        "attention.value", _CLASS,
    ),
)  # fmt: skip
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "heads", "n_heads", "n_head", "nheads", "nhead", "h")
"""Attributes in which attention layers store their number of heads."""


def vit_roles(model: nn.Module) -> Roles | None:
    """None unless a patch embedding and the attention layers of one layout share a prefix."""
    modules = dict(model.named_modules())
    for layout in _LAYOUTS:
        for name in modules:
            trunk = name.removesuffix(layout.entry)
            if trunk == name or not (trunk == "" or trunk.endswith(".")):
                continue
            attention = attention_of(modules, trunk, layout, lambda layer: isinstance(layer, nn.Linear))
            patches = names_inside(name, weighted_layers(model))
            if attention and patches:
                return _roles(model, trunk, layout, attention, patches)
    return None


def _roles(
    model: nn.Module, trunk: str, layout: Layout, attention: tuple[Attention, ...], patches: tuple[str, ...]
) -> Roles:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    position, class_token = trunk + layout.position, trunk + layout.class_token
    head, other_heads = find_heads(model, trunk)
    return Roles(
        family="vit",
        head=head,
        first_layer=patches[0],
        patch_embedding=patches[-1],
        position_embedding=position if position in parameters else None,
        class_token=class_token if class_token in parameters else None,
        attention=attention,
        norms=norm_layers(model),
        other_heads=other_heads,
    )


def attention_of(
    modules: dict[str, nn.Module], trunk: str, layout: Layout, fits: Callable[[nn.Module], bool]
) -> tuple[Attention, ...]:
    """Every module below ``trunk`` with a name of the layout's form, if ``fits`` holds for the layer of its queries."""
    pattern = re.compile(re.escape(trunk) + layout.attention)
    return tuple(
        Attention(
            name,
            heads=head_count(inner),
            qkv=find_child(modules, name, layout.qkv),
            q=find_child(modules, name, layout.q),
            k=find_child(modules, name, layout.k),
            v=find_child(modules, name, layout.v),
            out=find_child(modules, name, layout.out),
        )
        for name, inner in modules.items()
        if pattern.fullmatch(name) and (first := find_child(modules, name, layout.first)) and fits(modules[first])
    )


def find_child(modules: dict[str, nn.Module], parent: str, child: str | None) -> str | None:
    """``parent.child`` if the model has such a module."""
    name = f"{parent}.{child}"
    return name if child is not None and name in modules else None


def head_count(attention: nn.Module) -> int | None:
    """The first head count stored as an attribute of the layer, or of a layer inside it (transformers 4 nests two)."""
    for module in attention.modules():
        for attribute in _HEAD_COUNTS:
            count = vars(module).get(attribute)
            if isinstance(count, int):
                return count
    return None
