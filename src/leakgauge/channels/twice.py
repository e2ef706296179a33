"""Replaying a gradient means differentiating it again. Not every kernel and layer supports that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from leakgauge.errors import Inapplicable

ONCE_ONLY = {
    "Hardsigmoid": "write it as relu6(x + 3) / 6",
    "HardSigmoid": "write it as relu6(x + 3) / 6",
    "CTCLoss": "its backward pass has no derivative in PyTorch",
}
"""Layer classes without a second derivative. They are matched by class name, which also finds other libraries' copies."""

_UNDEFINED = re.compile(r"derivative for (\S+) is not implemented|(\S+) is not differentiable twice")


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Inside, scaled_dot_product_attention uses its math kernel, which can be differentiated twice.

    The fused kernels, including the default on CPU, cannot. Enter this around the forward pass.
    """
    with sdpa_kernel(SDPBackend.MATH):
        yield


class ScaleApart(TorchFunctionMode):
    """Normalises without weight and bias, then applies them as a product and a sum.

    ``torch.func.grad`` treats the mean and deviation of the data as constants in the gradient of a norm's weight. The gradient
    is right, but its derivative in the data is silently wrong by some per cent.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        apart = _APART.get(func)
        return func(*args, **(kwargs or {})) if apart is None else apart(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    normal = F.layer_norm(input, normalized_shape, None, None, eps)
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    normal = F.batch_norm(input, running_mean, running_var, None, None, training, momentum, eps)
    return _scale_channels(normal, weight, bias)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    normal = F.instance_norm(input, running_mean, running_var, None, None, use_input_stats, momentum, eps)
    return _scale_channels(normal, weight, bias)


def _scale_channels(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (-1, *[1] * (normal.dim() - 2))
    normal = normal if weight is None else normal * weight.view(shape)
    return normal if bias is None else normal + bias.view(shape)


_APART = {
    F.layer_norm: _layer_norm,
    torch.layer_norm: _layer_norm,
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
}


def refuse_once_only(model: nn.Module) -> None:
    """Raise ``Inapplicable`` and name every layer known not to be twice differentiable."""
    found = [(name, type(m).__name__) for name, m in model.named_modules() if type(m).__name__ in ONCE_ONLY]
    if found:
        named = ", ".join(f"{name} ({kind}: {ONCE_ONLY[kind]})" for name, kind in found[:5])
        raise Inapplicable(f"layers that cannot be differentiated twice: {named}")


@contextmanager
def explaining_once_only() -> Iterator[None]:
    """Turns PyTorch's error about a missing second derivative into ``Inapplicable`` with the operator's name."""
    try:
        yield
    except RuntimeError as error:
        found = _UNDEFINED.search(str(error))
        if found is None:
            raise
        operator = found.group(1) or found.group(2)
        raise Inapplicable(f"the model uses {operator}, which cannot be differentiated twice") from error
