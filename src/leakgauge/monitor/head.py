"""The probe's shortcut: inner products of per-sample gradients of one linear layer, without computing those gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.core import Loss
from leakgauge.core.running import output_at


@dataclass(frozen=True, eq=False)
class Products:
    """``gram`` (n, n) of the candidates' gradients and ``cross`` (n,) of each with the signal."""

    gram: Tensor
    cross: Tensor


def linear_owner(model: nn.Module, names: tuple[str, ...]) -> nn.Linear | None:
    """The linear layer that owns all the named parameters and shares none of them; None if there is no such layer."""
    owners = {name.rpartition(".")[0] for name in names}
    if len(owners) != 1:
        return None
    owner = model.get_submodule(owners.pop())
    own = {id(p) for p in owner.parameters()}
    tied = any(id(p) in own for m in model.modules() if m is not owner for p in m._parameters.values())
    return owner if type(owner) is nn.Linear and not tied else None


def head_products(
    model: nn.Module,
    layer: nn.Linear,
    loss: Loss,
    names: tuple[str, ...],
    signal: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
) -> Products | None:
    """Inner products for the parameters of ``layer`` from one forward pass; None if the layer is not used in the plain way.

    A sample's gradient is δ aᵀ for the weight and δ for the bias, with a the layer's input and δ the loss's gradient at its
    output. So ⟨gᵢ, gⱼ⟩ = ⟨δᵢ, δⱼ⟩(⟨aᵢ, aⱼ⟩ + 1) and ⟨gᵢ, g⟩ = δᵢᵀ(W_g aᵢ + b_g), with W_g, b_g from the ``signal``. The loss must be a
    mean over samples; a common factor would not change the order of the candidates.

    Ref: Goodfellow 2015, proposed method — norms of per-sample gradients from inputs and output gradients
    """
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def cut(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        inputs.append(args[0].detach())
        outputs.append(output.detach().requires_grad_())
        return outputs[-1]

    frozen = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    handle = layer.register_forward_hook(cut)
    try:
        with torch.enable_grad():
            value = loss(output_at(model, frozen, x.detach()), y)
    finally:
        handle.remove()
    if len(outputs) != 1 or outputs[0].ndim != 2 or not value.requires_grad:
        return None
    (delta,) = torch.autograd.grad(value, outputs)
    delta, a = delta.double() * len(x), inputs[0].double()  # as in whitebox.products
    weight = next((signal[n].double() for n in names if n.endswith("weight")), None)
    bias = next((signal[n].double() for n in names if n.endswith("bias")), None)
    inner, seen = delta.new_zeros(len(x), len(x)), torch.zeros_like(delta)
    if weight is not None:
        inner, seen = inner + a @ a.T, seen + a @ weight.T
    if bias is not None:
        inner, seen = inner + 1, seen + bias
    return Products(delta @ delta.T * inner, (delta * seen).sum(1))
