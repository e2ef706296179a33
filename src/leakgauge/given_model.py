"""The module that a user gives: refused where it cannot be run on given weights, else copied."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

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


def at_every_place(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` with the further names of tied tensors, one for each module that holds them.

    ``functional_call`` can tie by itself, but takes a module that stands at two places for two: it swaps its tensors twice
    and leaves the given ones in the model, such as the weights and statistics after a client's last local step.
    """
    names: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():  # every module once
        for own in (module._parameters, module._buffers):
            for name, tensor in own.items():
                if tensor is not None:
                    names.setdefault(id(tensor), []).append(f"{prefix}.{name}" if prefix else name)
    found = dict(state)
    for tied in names.values():
        given = next((name for name in tied if name in state), None)
        if given is not None:
            found.update({name: state[given] for name in tied if name not in state})
    return found
