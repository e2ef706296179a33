"""Roles of any model: first weighted layer, last linear layer, all norms. The fallback for CNNs, MLPs and unknown models."""

from __future__ import annotations

from torch import nn

from leakgauge.families.layers import linear_layers, norm_layers, weighted_layers
from leakgauge.families.roles import Roles


def generic_roles(model: nn.Module) -> Roles:
    """Roles by the order of registration, which is the order of use in almost every model.

    A linear layer that is followed by a convolution is not a classifier, so such a model has no head.
    """
    layers, dense = weighted_layers(model), linear_layers(model)
    return Roles(
        family="generic",
        head=layers[-1] if layers and layers[-1] in dense else None,
        first_layer=layers[0] if layers else None,
        norms=norm_layers(model),
    )
