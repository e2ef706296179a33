"""Plain vision transformers: ours, timm's (ViT, DeiT, EVA) and Hugging Face's (ViT, DeiT, BEiT, DINOv2, SigLIP, CLIP).

Hierarchical ones (Swin and the like) do not match: their blocks are grouped in stages, and their roles mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from leakgauge.families.layers import find_heads, names_inside, norm_layers, weighted_layers
from leakgauge.families.roles import Attention, Roles


@dataclass(frozen=True)
class _Layout:
    """How one library names the parts, relative to the trunk; q, k, v and out relative to the attention layer."""

    patch: str
    position: str
    class_token: str
    attention: str  # a regular expression
    out: str
    qkv: str | None = None
    q: str | None = None
    k: str | None = None
    v: str | None = None

    @property
    def first(self) -> str:
        return self.qkv or self.q or ""


_LAYOUTS = (
    _Layout("patch_embed", "pos_embed", "cls_token", r"blocks\.\d+\.attn", out="proj", qkv="qkv"),  # ours, timm
    _Layout(
        "patch_embed", "pos_embed", "cls_token", r"blocks\.\d+\.attn", out="proj", q="q_proj", k="k_proj", v="v_proj"
    ),
    _Layout(  # transformers 5
        "embeddings.patch_embeddings",
        "embeddings.position_embeddings",
        "embeddings.cls_token",
        r"(layers|encoder\.layers?)\.\d+\.attention",
        out="o_proj",
        q="q_proj",
        k="k_proj",
        v="v_proj",
    ),
    _Layout(  # SigLIP and CLIP in transformers
        "embeddings.patch_embedding",
        "embeddings.position_embedding.weight",
        "embeddings.class_embedding",
        r"encoder\.layers\.\d+\.self_attn",
        out="out_proj",
        q="q_proj",
        k="k_proj",
        v="v_proj",
    ),
    _Layout(  # transformers 4
        "embeddings.patch_embeddings",
        "embeddings.position_embeddings",
        "embeddings.cls_token",
        r"encoder\.layer\.\d+\.attention",
        out="output.dense",
        q="attention.query",
        k="attention.key",
        v="attention.value",
    ),
)
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "heads", "n_heads", "n_head", "nheads", "nhead", "h")
"""Attributes in which attention layers store their number of heads."""


def vit_roles(model: nn.Module) -> Roles | None:
    """None unless a patch embedding and the attention layers of one layout share a prefix."""
    modules = dict(model.named_modules())
    for layout in _LAYOUTS:
        for name in modules:
            trunk = name.removesuffix(layout.patch)
            if trunk == name or not (trunk == "" or trunk.endswith(".")):
                continue
            attention = _attention(modules, trunk, layout)
            patches = names_inside(name, weighted_layers(model))
            if attention and patches:
                return _roles(model, trunk, layout, attention, patches)
    return None


def _roles(
    model: nn.Module, trunk: str, layout: _Layout, attention: tuple[Attention, ...], patches: tuple[str, ...]
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


def _attention(modules: dict[str, nn.Module], trunk: str, layout: _Layout) -> tuple[Attention, ...]:
    return attention_of(
        modules, trunk, layout, lambda name: isinstance(modules.get(f"{name}.{layout.first}"), nn.Linear)
    )


class AttentionLayout(Protocol):
    """How a model family names its attention and the layers inside it, relative to the attention's own name."""

    @property
    def attention(self) -> str: ...
    @property
    def qkv(self) -> str | None: ...
    @property
    def q(self) -> str | None: ...
    @property
    def k(self) -> str | None: ...
    @property
    def v(self) -> str | None: ...
    @property
    def out(self) -> str | None: ...


def attention_of(
    modules: dict[str, nn.Module], trunk: str, layout: AttentionLayout, fits: Callable[[str], bool]
) -> tuple[Attention, ...]:
    """Every module below ``trunk`` with a name of the layout's form for which ``fits`` holds."""
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
        if pattern.fullmatch(name) and fits(name)
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
