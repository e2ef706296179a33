"""Replaying a gradient means differentiating it again. Not every kernel and layer supports that; some have a twin that does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from leakgauge.errors import Inapplicable

ONCE_ONLY = {"CTCLoss": "its backward pass has no derivative in PyTorch"}
"""Layer classes without a second derivative and without a twin that has one. They are matched by class name, which also finds other
libraries' copies."""

_UNDEFINED = re.compile(r"derivative for (\S+) is not implemented|(\S+) is not differentiable twice")


@contextmanager
def twice_differentiable(model: nn.Module | None = None) -> Iterator[None]:
    """Inside, scaled_dot_product_attention uses its math kernel and the functions of ``TWINS`` run as their twins; both can be
    differentiated twice.

    The fused kernels of attention, including the default on CPU, cannot. Enter this around the forward pass, and around the loss if
    that may use such a function. Recurrent layers run without cuDNN, whose kernels cannot be differentiated twice either. The first
    pass of a ``model`` notes which twins it takes; a model that takes none pays nothing afterwards.
    """
    known = None if model is None else _TAKEN.get(model)
    twins = _Twins() if known is None or known else None
    recurrent = model is not None and any(isinstance(module, nn.RNNBase) for module in model.modules())
    with sdpa_kernel(SDPBackend.MATH), _without_cudnn() if recurrent else nullcontext(), twins or nullcontext():
        yield
    if model is not None and known is None and twins is not None:
        _TAKEN[model] = tuple(twins.taken)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


def twins_taken(model: nn.Module) -> tuple[str, ...]:
    """The functions that ran as their twins in the first pass of ``model``, with what they ran as."""
    return _TAKEN.get(model, ())


_TAKEN: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()


class _Twins(TorchFunctionMode):
    """Runs each function of ``TWINS`` as its twin, and notes which ones."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, None] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        twin = TWINS.get(func)
        if twin is None:
            return func(*args, **(kwargs or {}))
        self.taken[f"{func.__name__} as {twin.said}"] = None
        return twin.compute(*args, **(kwargs or {}))


class Twin(NamedTuple):
    """A function with the same value and first derivative as another one, which also has a second; ``said`` names it."""

    compute: Callable[..., Tensor]
    said: str


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """(min(max(x, −3), 3) + 3) / 6; the slope is 1/6 for −3 < x < 3 and 0 elsewhere, as PyTorch's."""
    if inplace:
        return input.copy_(_hardsigmoid(input.clone()))
    return (F.hardtanh(input, -3.0, 3.0) + 3) / 6


def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    return _length(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def _pdist(input: Tensor, p: float = 2.0) -> Tensor:
    i, j = torch.triu_indices(len(input), len(input), 1, device=input.device)
    return _length(input[i] - input[j], p)


def _length(difference: Tensor, p: float) -> Tensor:
    """‖difference‖_p over the last dimension. Its slope at 0 is 0, and so is the slope of that: the norm of 0 has neither in general."""
    apart = (difference != 0).any(-1, keepdim=True)
    length = torch.linalg.vector_norm(torch.where(apart, difference, torch.ones_like(difference)), p, -1)
    return torch.where(apart.squeeze(-1), length, torch.zeros_like(length))


TWINS: Mapping[Any, Twin] = {
    F.hardsigmoid: Twin(_hardsigmoid, "(clamp(x, -3, 3) + 3) / 6"),
    torch.cdist: Twin(_cdist, "norms of differences"),
    F.pdist: Twin(_pdist, "norms of differences"),
    torch.pdist: Twin(_pdist, "norms of differences"),
}
"""Functions that PyTorch cannot differentiate twice, by what computes the same and can be."""


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


def _apart(norm: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``norm`` with its weight and bias applied after it, along the last dimensions of layer norm and the channels of the others."""
    form = inspect.signature(norm)

    def apart(*args: Any, cudnn_enable: bool = True, **kwargs: Any) -> Tensor:
        given = form.bind(*args[: len(form.parameters)], **kwargs)
        weight, bias = (given.arguments.pop(name, None) for name in ("weight", "bias"))
        normal = norm(*given.args, **given.kwargs)
        shape = (-1, *[1] * (normal.dim() - 2))
        weight, bias = (one if one is None or norm is F.layer_norm else one.view(shape) for one in (weight, bias))
        normal = normal if weight is None else normal * weight
        return normal if bias is None else normal + bias

    return apart


_APART = {norm: _apart(norm) for norm in (F.layer_norm, F.batch_norm, F.instance_norm)}
_APART[torch.layer_norm] = _APART[F.layer_norm]  # which takes one argument more


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
