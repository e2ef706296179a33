"""Rearranges a vision transformer so that its first block matches architecture A of the APRIL paper."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from leakgauge.errors import Inapplicable
from leakgauge.families.layers import norm_layers
from leakgauge.families.roles import Roles


class AttentionFirst(nn.Module):
    """Attention, normalisation, MLP one after another. Parts keep their names, so roles are still found."""

    def __init__(self, block: nn.Module, order: tuple[str, ...]) -> None:
        super().__init__()
        self._order = order
        for name in order:
            setattr(self, name, getattr(block, name))  # a function, such as an activation, stays one

    def forward(self, x: Any, *_: Any, **__: Any) -> Any:
        for name in self._order:
            part = getattr(self, name)
            x = part(x, x, x, need_weights=False) if isinstance(part, nn.MultiheadAttention) else part(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def attention_first(model: nn.Module, roles: Roles) -> nn.Module:
    """A copy of ``model`` without the norm before and the residual around its first attention.

    Works for our models, timm's, Hugging Face's and torchvision's, for models built on ``nn.TransformerEncoder``, and for
    hand-written ones with an attention, a normalisation and an ``mlp`` in each block. ``roles`` come from ``find_roles(model)``. The
    weights stay the same; only the order of the parts changes. Layer scale, dropout and stochastic depth of that block are
    dropped. On the command line: ``attention_first:MODEL``.
    """
    if not roles.attention:
        raise Inapplicable(
            "the model has no attention layer of a known family, so there is no first block to rearrange"
        )
    if roles.family not in ("vit", "text"):
        raise Inapplicable(
            f"only a plain transformer can be rearranged; the attention of a {roles.family} model works on windows"
        )
    changed = copy.deepcopy(model)
    place, _, attention = roles.attention[0].name.rpartition(".")
    shared = not place or roles.attention[0].beside_others
    if shared or (roles.patch_embedding or "").startswith(f"{place}."):
        raise Inapplicable(f"the first attention, {roles.attention[0].name}, is in no block that could be rearranged")
    block = changed.get_submodule(place)
    parent, _, name = place.rpartition(".")
    changed.get_submodule(parent).add_module(name, AttentionFirst(block, (attention, *_after(block, place))))
    return changed


def _after(block: nn.Module, place: str) -> tuple[str, ...]:
    """Names of the normalisation and the MLP that follow the attention of ``block``."""
    if isinstance(block, nn.TransformerEncoderLayer):  # its MLP is not a separate module
        return ("norm2", "linear1", "activation", "linear2")
    own = [name for name in norm_layers(block) if "." not in name]
    if not own or "mlp" not in dict(block.named_children()):
        raise Inapplicable(f"the block {place} has no separate normalisation and mlp to put after its attention")
    return (own[-1], "mlp")
