"""The module that a user gives: refused where it cannot be run on given weights, else copied."""

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
