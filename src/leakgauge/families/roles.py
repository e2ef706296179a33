"""What each part of a model is for, with the name it has in that model.

Attacks and defenses speak of roles ("the head", "the position embedding"); only the families know the names.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families.nearest import nearest

ROLES = (
    "head", "first_layer", "patch_embedding", "token_embedding", "position_embedding", "class_token", "attention", "norms",
)  # fmt: skip
"""The roles that a defense or an attack can ask for."""


@dataclass(frozen=True)
class Attention:
    """One self-attention layer, by module names: either ``qkv`` is fused, or ``q``, ``k`` and ``v`` are separate.

    The order of the rows in a fused ``qkv`` weight (q, k, v or head by head) is not recorded, because only sums over all rows
    are used. ``nn.MultiheadAttention`` holds the fused weight itself, without a layer: then ``packed`` is the name of that
    parameter and the others are None. ``heads`` is None if the model does not say. ``more`` holds the layers of further heads
    if each head has its own. ``beside_others``: the module ``name`` also holds weights that do not belong to the attention.
    """

    name: str
    heads: int | None
    qkv: str | None = None
    q: str | None = None
    k: str | None = None
    v: str | None = None
    out: str | None = None
    packed: str | None = None
    more: tuple[str, ...] = ()
    beside_others: bool = False

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that compute q, k and v; empty if the attention does so itself."""
        return tuple(name for name in (self.qkv, self.q, self.k, self.v, *self.more) if name is not None)

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the modules that hold only weights of this attention."""
        return tuple(filter(None, (*self.layers, self.out))) if self.beside_others else (self.name,)

    @property
    def weights(self) -> tuple[str, ...]:
        """Parameter names of the weights of q, k and v, in this order."""
        return (self.packed,) if self.packed is not None else tuple(f"{name}.weight" for name in self.layers)


@dataclass(frozen=True)
class Roles:
    """Names of the parts of one model; None or empty if the model has no such part.

    ``head``, ``first_layer``, ``patch_embedding`` and ``token_embedding`` name layers with a weight of their own:
    ``f"{roles.head}.weight"`` is a parameter. ``head`` is always an ``nn.Linear``. ``position_embedding`` and
    ``class_token`` are parameter names. ``other_heads`` lists further classifiers (a distilled DeiT has two and averages their
    logits): attacks read ``head``, but ``parameters("head", ...)`` covers them all, so a withheld head is withheld completely.
    """

    family: str
    head: str | None = None
    first_layer: str | None = None
    patch_embedding: str | None = None
    token_embedding: str | None = None
    position_embedding: str | None = None
    class_token: str | None = None
    attention: tuple[Attention, ...] = ()
    norms: tuple[str, ...] = ()
    other_heads: tuple[str, ...] = ()

    def parameters(self, role: str, model: nn.Module) -> tuple[str, ...]:
        """All parameter names of ``role``, as in ``model.named_parameters()``.

        A tied parameter has only one name there, which may be outside the role's own module.
        """
        places = self._places(role)
        if not places:
            raise Inapplicable(f"no {role} in this model")
        name_of = {id(parameter): name for name, parameter in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        found = dict.fromkeys(name_of[id(p)] for name, p in every if any(_under(place, name) for place in places))
        if not found:
            raise Inapplicable(f"no parameters in the {role} of this model")
        return tuple(found)

    def _places(self, role: str) -> tuple[str, ...]:
        if role not in ROLES:
            raise BadInput(f"{role!r} is not a role of a model; {nearest(role, ROLES)}")
        if role == "attention":
            return tuple(place for layer in self.attention for place in layer.places)
        if role == "norms":
            return self.norms
        name = {
            "head": self.head,
            "first_layer": self.first_layer,
            "patch_embedding": self.patch_embedding,
            "token_embedding": self.token_embedding,
            "position_embedding": self.position_embedding,
            "class_token": self.class_token,
        }[role]
        if name is None:
            return ()
        return (name, *self.other_heads) if role == "head" else (name,)


def _under(place: str, name: str) -> bool:
    """Whether a parameter is ``place`` or inside the module ``place`` (the root module is named "")."""
    return place in ("", name) or name.startswith(place + ".")
