"""Any model: first weighted layer, last linear layer, all norms. The fallback for CNNs, MLPs and strangers."""

from __future__ import annotations

from torch import nn

from leakgauge.families.layers import linears, norms, weighted
from leakgauge.families.roles import Roles


def generic_roles(model: nn.Module) -> Roles:
    """Roles by the order of registration, which is the order of use in almost every model.

    A linear layer that some convolution follows is no classifier, so such a model has no head.
    """
    layers, dense = weighted(model), linears(model)
    return Roles(
        family="generic",
        head=layers[-1] if layers and layers[-1] in dense else None,
        first_layer=layers[0] if layers else None,
        norms=norms(model),
    )
