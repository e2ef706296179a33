"""A head under which images of one class alone leave a gradient in the body of the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.core.running import deep_copy
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.families import find_roles

UNLIKELY = 200.0
"""How far below all others the fished class starts: exp(−200) is nothing beside 1 in double precision too."""


@dataclass(frozen=True)
class Fishing:
    """The server made by :func:`fishing`."""

    target: int

    @property
    def reads(self) -> str:
        return "fishing"

    def __call__(self, victim: Victim, /, *, auxiliary: Tensor | None = None, seed: int = 0) -> Victim:
        model, name = deep_copy(victim.model), find_roles(victim.model).head
        head = None if name is None else model.get_submodule(name)
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise Inapplicable(f"fishing needs a linear head with a bias, the model has a {type(head).__name__}")
        if self.target >= head.out_features:
            raise BadInput(f"the model has classes 0 to {head.out_features - 1}, fishing asks for {self.target}")
        with torch.no_grad():
            kept = head.weight[self.target].clone()
            head.weight.zero_()
            head.weight[self.target] = kept
            head.bias.zero_()
            head.bias[self.target] = -UNLIKELY
        return replace(victim, model=model, sent_by=repr(self))


def fished_class(victim: Victim) -> int:
    """The class that the head of the model that was sent fishes for; refuses a head that does not."""
    name = find_roles(victim.model).head
    head = None if name is None else victim.model.get_submodule(name)
    bias = head.bias.detach() if isinstance(head, nn.Linear) and head.bias is not None else None
    if bias is None or float(bias.min()) > -UNLIKELY / 2 or int((bias < -UNLIKELY / 2).sum()) != 1:
        raise Inapplicable("the model's head does not fish for a class; let --server fishing:target=CLASS send it")
    return int(bias.argmin())


def fishing(target: int = 0) -> Fishing:
    """Wen et al. 2022, class fishing: images of class ``target`` alone reach the body of the network with their gradient.

    The head keeps the row w of the target and zeros elsewhere, and a bias that makes the target unlikely. For an image of another
    class ∂L/∂f = p_target · w ≈ 0 at the features f; for one of the target it is (p_target − 1) · w ≈ −w. The update of a large
    batch is that of its images of one class, and where there is one, a single image's. The attack ``fishing`` matches it.

    Deviations: no separation among several images of the class (the paper's feature fishing).

    Ref: Wen et al. 2022 — class fishing
    """
    if target < 0:
        raise BadInput(f"a class is a number from 0 on, got {target}")
    return Fishing(target)
