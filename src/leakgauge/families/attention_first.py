"""Makes the variant of a vision transformer whose first block is stacked as in architecture A of the APRIL paper."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from leakgauge.errors import Inapplicable
from leakgauge.families.layers import norms
from leakgauge.families.roles import Roles


class AttentionFirst(nn.Module):
    """Attention, normalisation, MLP one after another. Children keep their names, so that roles are still found."""

    def __init__(self, block: nn.Module, attention: str, norm: str, mlp: str) -> None:
        super().__init__()
        self._order = (attention, norm, mlp)
        for name in self._order:
            self.add_module(name, block.get_submodule(name))

    def forward(self, x: Any, *_: Any, **__: Any) -> Any:
        for name in self._order:
            x = self.get_submodule(name)(x)
            x = x[0] if isinstance(x, tuple) else x
        return x


def attention_first(model: nn.Module, roles: Roles) -> nn.Module:
    """A copy of ``model`` (ours, timm's, Hugging Face's) without norm before and residual around its first attention.

    ``roles`` are the model's own, from ``find_roles(model)``. The weights are the model's; only their order changes. Scaling
    (layer scale) and dropped paths of that block are left out. On the command line it is ``attention_first:MODEL``.
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
    block = changed.get_submodule(place)
    own = [name for name in norms(block) if "." not in name]
    if not own or "mlp" not in dict(block.named_children()):
        raise Inapplicable(f"the block {place} has no normalisation and mlp of its own to stack after its attention")
    parent, _, name = place.rpartition(".")
    changed.get_submodule(parent).add_module(name, AttentionFirst(block, attention, own[-1], "mlp"))
    return changed
