"""Networks in stages, as timm names them: Swin and SwinV2, MaxViT, ConvNeXt; also inside wrappers that prefix the names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn

from leakgauge.families.layers import find_heads, names_inside, norm_layers, weighted_layers
from leakgauge.families.roles import Attention, Roles


@dataclass(frozen=True)
class _Layout:
    """``mark`` is a layer that only this family has, ``stem`` where pixels enter, ``patches`` whether they enter as patches."""

    family: str
    mark: str  # a regular expression; attention layers where the family has any
    stem: str
    patches: bool


_LAYOUTS = (
    _Layout("swin", r"layers\.\d+\.blocks\.\d+\.attn", stem="patch_embed", patches=True),
    _Layout("maxvit", r"stages\.\d+\.blocks\.\d+\.attn_(?:block|grid)\.attn", stem="stem", patches=False),
    _Layout("convnext", r"stages\.\d+\.blocks\.\d+\.conv_dw", stem="stem", patches=True),
)


def hierarchical_roles(model: nn.Module) -> Roles | None:
    """None unless the model has the blocks of one layout. Positions are relative, one table a block, so there is no such role."""
    modules = dict(model.named_modules())
    for layout in _LAYOUTS:
        pattern = re.compile(rf"(?P<trunk>(?:.+\.)?){layout.mark}")
        marks = [found for found in map(pattern.fullmatch, modules) if found is not None]
        trunk = marks[0]["trunk"] if marks else ""
        stem = names_inside(trunk + layout.stem, weighted_layers(model))
        if not marks or not stem:
            continue
        head, other_heads = find_heads(model, trunk)
        return Roles(
            family=layout.family,
            head=head,
            first_layer=stem[0],
            patch_embedding=stem[0] if layout.patches else None,
            attention=tuple(filter(None, (_attention(modules, found.group()) for found in marks))),
            norms=norm_layers(model),
            other_heads=other_heads,
        )
    return None


def _attention(modules: dict[str, nn.Module], name: str) -> Attention | None:
    layer = modules[name]
    if not isinstance(modules.get(f"{name}.qkv"), nn.Linear):
        return None
    by_head = bool(getattr(layer, "head_first", False))  # rows are ordered by head, not q, k, v
    heads = getattr(layer, "num_heads", None)
    return Attention(
        name,
        heads=heads if isinstance(heads, int) else None,
        qkv=None if by_head else f"{name}.qkv",
        out=f"{name}.proj" if f"{name}.proj" in modules else None,
    )
