"""Finds the parts of a model by role, and gives their names.

A new family is one file with a function ``model -> Roles | None`` and one line in ``FAMILIES``.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from leakgauge.families.attention_first import attention_first
from leakgauge.families.cnn import generic_roles
from leakgauge.families.handwritten import handwritten_roles
from leakgauge.families.hierarchical import hierarchical_roles
from leakgauge.families.multihead import multihead_roles
from leakgauge.families.resnet import resnet_roles
from leakgauge.families.roles import ROLES, Attention, Roles
from leakgauge.families.text import text_roles
from leakgauge.families.vit import vit_roles

__all__ = ["FAMILIES", "ROLES", "Attention", "Roles", "attention_first", "find_roles"]

FAMILIES: dict[str, Callable[[nn.Module], Roles | None]] = {
    "vit": vit_roles,
    "resnet": resnet_roles,
    "text": text_roles,
    "hierarchical": hierarchical_roles,
    "multihead": multihead_roles,
    "handwritten": handwritten_roles,
}
"""Tried in this order. The generic roles come last and fit every model."""


def find_roles(model: nn.Module) -> Roles:
    """The roles of ``model`` from the first family that matches, otherwise the generic ones.

    >>> find_roles(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 10))).head
    '3'
    """
    for roles_of in FAMILIES.values():
        roles = roles_of(model)
        if roles is not None:
            return roles
    return generic_roles(model)
