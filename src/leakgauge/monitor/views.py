"""Which gradient is read: as computed, after clipping, or as released; for plain torch and for Opacus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from leakgauge.errors import BadInput, Inapplicable
from leakgauge.monitor.leakage import View
from leakgauge.monitor.whitebox import Protection

COMPILED = "torch.compile traces through the monitor's hooks; watch the model without compiling it"


@runtime_checkable
class PrivateOptimizer(Protocol):
    """Opacus' ``DPOptimizer``, by its attributes: it clips and adds noise inside ``step``, then calls the wrapped optimizer."""

    original_optimizer: torch.optim.Optimizer
    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: int
    loss_reduction: str


def stepping_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that applies the released gradient in its ``step``: Opacus and Accelerate wrap it, and the wrappers fire no hooks."""
    while True:
        if isinstance(optimizer, PrivateOptimizer):
            optimizer = optimizer.original_optimizer
        elif type(optimizer).__name__ == "AcceleratedOptimizer":
            optimizer = vars(optimizer)["optimizer"]
        else:
            return optimizer


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel or Opacus' GradSampleModule, with its own parameter names."""
    while True:
        inner = model._modules.get("_module" if type(model).__name__.startswith("GradSampleModule") else "module")
        wrapped = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        if inner is None or not (wrapped or type(model).__name__.startswith("GradSampleModule")):
            return model
        model = inner


def refuse_unsupported(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raises ``BadInput`` for a setup in which hooks would see no gradient or a wrong one."""
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise BadInput("FSDP shards the gradients, so no process has a whole one; watch an unsharded run instead")
    if "OptimizedModule" in kinds or any(m._compiled_call_impl is not None for m in model.modules()):
        raise BadInput(COMPILED)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise BadInput("LBFGS evaluates many gradients at changing weights in one step; watch a first-order optimizer")


def reader(
    view: View, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> Callable[[], dict[str, Tensor | None]]:
    """A function that reads the gradient of the coming step, as ``view`` sees it, by name.

    Plain torch: ``p.grad``, with any clipping that the loop did, unscaled by GradScaler. Opacus: the mean of
    ``p.grad_sample`` (raw), ``p.summed_grad`` over the expected batch size (clipped) or ``p.grad`` (released).
    """
    if isinstance(optimizer, PrivateOptimizer) and view != "released":
        private = optimizer

        def read_private() -> dict[str, Tensor | None]:
            over = _divisor(private)
            return {name: _private(view, p, over) for name, p in parameters.items()}

        return read_private
    applying = stepping_optimizer(optimizer)

    def read() -> dict[str, Tensor | None]:
        found = {name: p.grad for name, p in parameters.items()}
        scale = getattr(applying, "grad_scale", None)  # set by GradScaler for optimizers that unscale inside
        if scale is not None:
            found = {name: None if g is None else g / scale for name, g in found.items()}
        if any(g is not None and g.is_sparse for g in found.values()):
            raise Inapplicable("a gradient is sparse, which the sketch cannot read")
        return found

    return read


def protection_of(optimizer: torch.optim.Optimizer, *, stated: Protection | None = None, view: View) -> Protection:
    """Clipping and noise in the gradient that ``view`` reads: from Opacus' optimizer, or as the user stated them."""
    found = stated or Protection()
    if isinstance(optimizer, PrivateOptimizer):
        clip, over = float(optimizer.max_grad_norm), _divisor(optimizer)
        found = Protection(clip=clip, noise=float(optimizer.noise_multiplier) * clip / over, over=over)
    clip, noise = None if view == "raw" else found.clip, found.noise if view == "released" else None
    return replace(found, clip=clip, noise=noise)


def _divisor(optimizer: PrivateOptimizer) -> int:
    """The divisor of Opacus' noised sum: the expected batch size times the batches accumulated in the step, or 1."""
    if optimizer.loss_reduction != "mean":
        return 1
    held = [p for part in optimizer.original_optimizer.param_groups for p in part["params"]]
    samples = [getattr(p, "grad_sample", None) for p in held]
    return optimizer.expected_batch_size * max([len(s) for s in samples if isinstance(s, list)], default=1)


def _private(view: View, parameter: nn.Parameter, over: int) -> Tensor | None:
    if view == "clipped":
        summed: Any = getattr(parameter, "summed_grad", None)
        return None if summed is None else summed / over
    samples: Any = getattr(parameter, "grad_sample", None)
    if samples is None:
        return None
    parts = samples if isinstance(samples, list) else [samples]
    count = sum(len(part) for part in parts)
    return torch.stack([part.sum(0) for part in parts]).sum(0) / max(count, 1)
