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
from leakgauge.core import Signal, Targets, Victim
from leakgauge.errors import BadInput


@dataclass(frozen=True)
class Gradient:
    """g = ∂/∂θ loss(model_θ(x), y), by parameter name, in the victim's mode.

    Differentiable in x, and in y where y holds class probabilities that require a gradient.

    Ref: Zhu et al. 2019, Eq. (1) — the gradient a client shares
    """

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        return gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())

    def buffers(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        """Buffers after the client's forward pass (running statistics of a train-mode victim)."""
        after = victim.buffers()
        with torch.no_grad():
            victim(x, buffers=after)
        return after


def gradient(victim: Victim, x: Tensor, y: Targets, *, parameters: Signal, buffers: Signal) -> dict[str, Tensor]:
    """Gradient of the victim's loss at ``parameters``. ``buffers`` are updated in place as the client's would be.

    The graph is kept when x, y or the parameters can be differentiated, so that the result can be too.
    A parameter that the loss does not use gets a gradient of zero.
    """

    def loss(at: dict[str, Tensor]) -> Tensor:
        with twice_differentiable():
            return _one_number(victim.loss(victim(x, parameters=at, buffers=buffers), y))

    keep_graph = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *_tensors(y), *parameters.values()))
    return gradient_at(parameters, loss, keep_graph=keep_graph)


def _one_number(value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise BadInput(f"the victim's loss must give one number, got {given}; return the mean over the batch alone")
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
    """``gradient_of`` every sample as a batch of its own, one row of the result for each.

    All at once where the model can be mapped, else one after another.
    """

    def one(x: Tensor, y: Targets) -> dict[str, Tensor]:
        return gradient_of(x[None], y[None] if isinstance(y, Tensor) else {name: t[None] for name, t in y.items()})

    lists = isinstance(y, Mapping) and IMAGE in y  # any number of objects a sample: nothing that could be mapped over
    if not _watched.get() and not lists:
        try:
            with inside_transform():
                return torch.vmap(one, randomness="different")(x, y)
        except RuntimeError:  # recurrent layers, values that decide what is run: some models cannot be mapped
            pass  # an error of the model's own is raised again below
    alone = [gradient_of(x[i : i + 1], of_samples(y, [i], samples=len(x))) for i in range(len(x))]
    return {name: torch.stack([single[name] for single in alone]) for name in alone[0]}


_watched: ContextVar[bool] = ContextVar("watched", default=False)


@contextmanager
def watchable() -> Iterator[None]:
    """Inside, no channel uses torch.func, which lets nobody watch the tensors it keeps; samples are taken one after another."""
    with _switched_on(_watched):
        yield


_inside_transform: ContextVar[bool] = ContextVar("inside_transform", default=False)


@contextmanager
def inside_transform() -> Iterator[None]:
    """Inside, gradients are taken with ``torch.func.grad``, the only kind that vmap can map over."""
    with _switched_on(_inside_transform), ScaleApart():
        yield


@contextmanager
def _switched_on(switch: ContextVar[bool]) -> Iterator[None]:
    token = switch.set(True)
    try:
        yield
    finally:
        switch.reset(token)


def _tensors(y: Targets) -> list[Tensor]:
    return [y] if isinstance(y, Tensor) else list(y.values())
