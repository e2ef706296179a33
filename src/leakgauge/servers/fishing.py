"""A head that lets only images of one class leave a gradient in the body of the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.running import deep_copy
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles

UNLIKELY = 200.0
"""How far the target's logit starts below all others: exp(−200) vanishes beside 1 even in double precision."""


@checked
@dataclass(frozen=True)
class FishingServer:
    """Wen et al. 2022, class fishing: only images of class ``target`` leave a gradient in the body of the network.

    The head keeps the row w of the target, has zeros elsewhere, and a bias that makes the target unlikely. At the features f an
    image of another class has ∂L/∂f = p_target · w ≈ 0; an image of the target has (p_target − 1) · w ≈ −w. So the update of a large
    batch is the update of its images of one class, and of a single image if there is only one. The attack ``fishing`` inverts it.

    Deviations: no separation of several images of the class (the paper's feature fishing).

    Ref: Wen et al. 2022 — class fishing
    """

    target: int = 0

    def __post_init__(self) -> None:
        if self.target < 0:
            raise BadInput(f"fishing needs a class number of at least 0, got {self.target}")

    @property
    def reads(self) -> str:
        return "fishing"

    @plain_defaults()
    def __call__(self, victim: Victim, /, *, auxiliary: Tensor | None = None, seed: int = 0) -> Victim:
        model, name = deep_copy(victim.model), find_roles(victim.model).head
        head = None if name is None else model.get_submodule(name)
        if not isinstance(head, nn.Linear) or head.bias is None:
            raise Inapplicable(f"fishing needs a linear head with a bias, but the model has a {type(head).__name__}")
        if self.target >= head.out_features:
            raise BadInput(f"the model has classes 0 to {head.out_features - 1}, but fishing asks for {self.target}")
        with torch.no_grad():
            kept = head.weight[self.target].clone()
            head.weight.zero_()
            head.weight[self.target] = kept
            head.bias.zero_()
            head.bias[self.target] = -UNLIKELY
        return replace(victim, model=model, sent_by=repr(self))


def fished_class(victim: Victim) -> int:
    """The class that the head of the model fishes for. Refuses an ordinary head."""
    name = find_roles(victim.model).head
    head = None if name is None else victim.model.get_submodule(name)
    bias = head.bias.detach() if isinstance(head, nn.Linear) and head.bias is not None else None
    if bias is None or float(bias.min()) > -UNLIKELY / 2 or int((bias < -UNLIKELY / 2).sum()) != 1:
        raise Inapplicable(
            "the model's head does not fish for a class; send the model with --server fishing:target=CLASS"
        )
    return int(bias.argmin())
