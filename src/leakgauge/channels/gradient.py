"""The gradient of one batch: what a client of federated SGD sends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leakgauge.channels.targets import IMAGE, of_samples
from leakgauge.channels.twice import ScaleApart, twice_differentiable
from leakgauge.core import Mode, Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example()
@checked
@dataclass(frozen=True)
class Gradient:
    """g = ∂/∂θ loss(model_θ(x), y), by parameter name, in the victim's mode.

    Differentiable in x, and in y where y holds class probabilities that require a gradient.

    Ref: Zhu et al. 2019, Eq. (1) — the gradient a client shares
    """

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        return gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())

    def is_gradient(self, mode: Mode, /) -> bool:
        return True

    def buffers(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        """Buffers after the client's forward pass (running statistics of a train-mode victim)."""
        after = victim.buffers()
        with torch.no_grad():
            victim(x, buffers=after)
        return after


def gradient(victim: Victim, x: Tensor, y: Targets, *, parameters: Signal, buffers: Signal) -> dict[str, Tensor]:
    """Gradient of the victim's loss at ``parameters``. ``buffers`` are updated in place, as on the client.

    The result is differentiable if x, y or the parameters require a gradient.
    A parameter that the loss does not use gets a gradient of zero.
    """

    def loss(at: dict[str, Tensor]) -> Tensor:
        with twice_differentiable(victim.model):
            return _one_number(victim.loss(victim(x, parameters=at, buffers=buffers), y))

    keep_graph = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *_tensors(y), *parameters.values()))
    return gradient_at(parameters, loss, keep_graph=keep_graph)


def _one_number(value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise BadInput(f"the victim's loss must return one number, got {given}; return only the mean over the batch")
    return value


def gradient_at(
    parameters: Signal, loss: Callable[[dict[str, Tensor]], Tensor], *, keep_graph: bool = False
) -> dict[str, Tensor]:
    """∂ loss(θ)/∂θ at θ = ``parameters``, zero where the loss does not use a parameter; vmap may map over it."""
    if _inside_transform.get():
        return torch.func.grad(loss)(dict(parameters))
    at = {name: p if p.requires_grad else p.detach().requires_grad_() for name, p in parameters.items()}
    with torch.enable_grad():
        value = loss(at)
    grads = torch.autograd.grad(value, list(at.values()), create_graph=keep_graph, allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(at.items(), grads, strict=True)}


def each_gradient(victim: Victim, x: Tensor, y: Targets, *, parameters: Signal, buffers: Signal) -> dict[str, Tensor]:
    """The gradients of the single samples, shape (B, *shape), differentiable like :func:`gradient`."""
    return for_each_sample(partial(gradient, victim, parameters=parameters, buffers=buffers), x, y)


def for_each_sample(
    gradient_of: Callable[[Tensor, Targets], dict[str, Tensor]], x: Tensor, y: Targets
) -> dict[str, Tensor]:
    """``gradient_of`` each sample as a batch of one; one row of the result per sample.

    Uses vmap if the model allows it, otherwise takes one sample after another.
    """

    def one(x: Tensor, y: Targets) -> dict[str, Tensor]:
        return gradient_of(x[None], y[None] if isinstance(y, Tensor) else {name: t[None] for name, t in y.items()})

    lists = (
        isinstance(y, Mapping) and IMAGE in y
    )  # samples have different numbers of objects, so vmap cannot map over them
    if not _without_torch_func.get() and not lists:
        try:
            with inside_transform():
                return torch.vmap(one, randomness="different")(x, y)
        except RuntimeError:  # vmap cannot map recurrent layers or data-dependent control flow
            pass  # an error in the model itself is raised again below
    singles = [gradient_of(x[i : i + 1], of_samples(y, [i], samples=len(x))) for i in range(len(x))]
    return {name: torch.stack([single[name] for single in singles]) for name in singles[0]}


_without_torch_func: ContextVar[bool] = ContextVar("without_torch_func", default=False)


@contextmanager
def without_torch_func() -> Iterator[None]:
    """Inside, no channel uses torch.func, which hides the tensors it saves; samples are taken one after another."""
    with _switch_on(_without_torch_func):
        yield


_inside_transform: ContextVar[bool] = ContextVar("inside_transform", default=False)


@contextmanager
def inside_transform() -> Iterator[None]:
    """Inside, gradients use ``torch.func.grad``, the only kind that vmap can map over."""
    with _switch_on(_inside_transform), ScaleApart():
        yield


@contextmanager
def _switch_on(switch: ContextVar[bool]) -> Iterator[None]:
    token = switch.set(True)
    try:
        yield
    finally:
        switch.reset(token)


def _tensors(y: Targets) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else list(y.values())
