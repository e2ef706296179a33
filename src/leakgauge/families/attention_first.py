"""Makes the variant of a vision transformer whose first block is stacked as in architecture A of the APRIL paper."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from leakgauge.errors import Inapplicable
from leakgauge.families.layers import norms
from leakgauge.families.roles import Roles


class AttentionFirst(nn.Module):
    """Attention, normalisation, MLP one after another. Parts keep their names, so that roles are still found."""

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

    Ours, timm's, Hugging Face's and torchvision's can be rearranged, models on ``nn.TransformerEncoder``, and those written by hand
    whose blocks hold an attention, a normalisation and an ``mlp``. ``roles`` are the model's own, from ``find_roles(model)``. The
    weights are the model's; only their order changes. Scaling (layer scale), dropout and dropped paths of that block are left
    out. On the command line it is ``attention_first:MODEL``.
    """
    if not roles.attention:
        raise Inapplicable(
            "the model has no attention layer that a family knows, so there is no first block to rearrange"
        )
    if roles.family not in ("vit", "text"):
        raise Inapplicable(
            f"a plain transformer can be rearranged; the attention of a {roles.family} model reads windows"
        )
    changed = copy.deepcopy(model)
    place, _, attention = roles.attention[0].name.rpartition(".")
    shared = not place or roles.attention[0].beside_others
    if shared or (roles.patch_embedding or "").startswith(f"{place}."):
        raise Inapplicable(f"the first attention, {roles.attention[0].name}, lies in no block of its own to rearrange")
    block = changed.get_submodule(place)
    parent, _, name = place.rpartition(".")
    changed.get_submodule(parent).add_module(name, AttentionFirst(block, (attention, *_after(block, place))))
    return changed


def _after(block: nn.Module, place: str) -> tuple[str, ...]:
    """Names of the normalisation and the MLP that are stacked after the attention of ``block``."""
    if isinstance(block, nn.TransformerEncoderLayer):  # its MLP is no module of its own
        return ("norm2", "linear1", "activation", "linear2")
    own = [name for name in norms(block) if "." not in name]
    if not own or "mlp" not in dict(block.named_children()):
        raise Inapplicable(f"the block {place} has no normalisation and mlp of its own to stack after its attention")
    return (own[-1], "mlp")
