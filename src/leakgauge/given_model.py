"""The module that a user gives: refused where it cannot be run on given weights, else copied; what its train mode changes."""

from __future__ import annotations

import copy

import torch
from torch import nn

from leakgauge.errors import BadInput


def copied(model: nn.Module) -> nn.Module:
    """A copy that shares nothing with the model that was given."""
    try:
        return copy.deepcopy(model)
    except RuntimeError as refusal:
        if "graph leaves" not in str(refusal):
            raise
        raise BadInput(
            "the victim's model keeps a tensor of its last pass, as nn.utils.weight_norm and spectral_norm do, and cannot be copied; "
            "run it once inside torch.no_grad() first"
        ) from refusal


def refuse_wrapped(model: nn.Module) -> None:
    """Modules that cannot be run on given weights, each with what to give instead."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise BadInput(f"the victim's model is wrapped in {type(model).__name__}; give the module inside, model.module")
    if isinstance(model, torch.jit.ScriptModule):
        raise BadInput(
            "the victim's model is TorchScript, whose weights are fixed; give the nn.Module it was made from"
        )
    if any(hasattr(m, "_orig_mod") for m in model.modules()):
        raise BadInput(
            "the victim's model is compiled, so that it cannot be differentiated twice; give the module inside, model._orig_mod"
        )
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise BadInput("the victim's model has lazy layers without weights; run one batch through it first")


def drop_rate(module: nn.Module) -> float:
    """The share that a layer drops in train mode: dropout, dropout inside attention, timm's and torchvision's stochastic depth."""
    rate = getattr(module, drop_attribute(module), 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def drop_attribute(module: nn.Module) -> str:
    """Under which name a layer of :func:`drop_rate` holds its rate."""
    if isinstance(module, nn.modules.dropout._DropoutNd) or type(module).__name__ == "StochasticDepth":  # torchvision's
        return "p"
    return "dropout" if isinstance(module, nn.MultiheadAttention) else "drop_prob"  # as timm and transformers write it


def keeps_statistics(module: nn.Module) -> bool:
    """Whether single images move running statistics of the layer."""
    return isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.running_mean is not None
