"""Attaches a monitor to a training by hooks; the training loop does not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from leakgauge.core import Loss
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.measures.sketch import Sketch
from leakgauge.monitor.inputs import batch_of, only_tensor
from leakgauge.monitor.keywords import LABELS
from leakgauge.monitor.leakage import View
from leakgauge.monitor.monitor import Log, Monitor, ScalarWriter
from leakgauge.monitor.prober import Prober, Samples
from leakgauge.monitor.views import (
    PrivateOptimizer,
    protection_of,
    reader,
    refuse_unsupported,
    stepping_optimizer,
    unwrap,
)
from leakgauge.monitor.whitebox import Protection


class Scaler(Protocol):
    """``torch.amp.GradScaler``, by its method."""

    def get_scale(self) -> float: ...


@checked
@plain_defaults()
def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    loss: Loss | nn.Module | None = None,
    every: int = 50,
    view: View = "released",
    log: Log | ScalarWriter | None = None,
    candidates: Samples | tuple[Tensor, Tensor] | None = None,
    others: int | None = None,
    protection: Protection | None = None,
    epsilon: Callable[[], float] | None = None,
    has: Callable[[Tensor], Tensor] | None = None,
    scaler: Scaler | None = None,
    alpha: float = 0.05,
    choices: int = 16,
    sketch: Sketch | None = None,
    batches: Literal["forward", "given"] = "forward",
    strict: bool = False,
    seed: int = 0,
) -> Monitor:
    """Watches the training of ``model`` by ``optimizer``. One step is one ``optimizer.step()``.

        monitor = watch(model, optimizer, loss=criterion)
        ...                                     # the loop, unchanged
        monitor.report(); monitor.close()

    The white-box probe runs every ``every`` steps, for ``loss``, by default cross entropy. It needs the labels: if ``loss`` is the
    ``nn.Module`` that the loop calls, a hook reads them; for a function of class scores and labels, such as ``F.cross_entropy``, they are
    read from the gradient at the model's output; otherwise pass them with ``monitor.labels(y)``.
    ``candidates`` is a dataset (or tensors x, y) to draw non-members from; without it, samples of recent batches are used. ``others``
    is their number, by default as many as members. ``view`` is ``raw``
    (this process's gradient as computed, before clipping and before DDP averages it), ``clipped`` or ``released`` (what the
    optimizer applies). ``protection`` states per-sample clipping and noise if the loop does differential privacy itself; with
    Opacus they are read from the optimizer. ``epsilon`` returns the ε spent so far, which the reports then include; with Opacus
    ``lambda: engine.get_epsilon(delta)``. ``has`` says which samples of a batch (n, …) have a property, (n,): then a probe is asked whether
    updates tell how many have it. ``scaler`` is the GradScaler, only needed for ``view="raw"``. With ``batches="given"`` no hook
    reads the forward passes; pass each batch with ``monitor.see(x)``, as the adapters for trainers do.

    The monitor never raises into the training unless ``strict``; a problem causes one warning.
    """
    refuse_unsupported(model, optimizer)
    if batches not in ("forward", "given"):
        raise BadInput(f"batches must be 'forward' or 'given', got {batches!r}")
    inner = unwrap(model)
    held = {id(p) for part in stepping_optimizer(optimizer).param_groups for p in part["params"]}
    parameters = {n: p for n, p in inner.named_parameters() if p.requires_grad and id(p) in held}
    if not parameters:
        raise BadInput("the optimizer holds no trainable parameter of this model; pass the model that it trains")
    if len({p.device for p in parameters.values()}) > 1:
        raise BadInput(
            "the model is spread over several devices, which the sketch cannot read; watch a model on one device"
        )
    monitor = Monitor(
        every=every,
        view=view,
        log=log,
        strict=strict,
        seed=seed,
        alpha=alpha,
        choices=choices,
        sketch=sketch,
        prober=Prober(
            inner,
            loss,
            every=every,
            candidates=candidates,
            others=others,
            protection=lambda: protection_of(optimizer, stated=protection, view=view),
            seed=seed,
        ),
        epsilon=epsilon,
        has=has,
    )
    hooks = _Hooks(monitor, model, optimizer, parameters, scaler)
    hooks.attach(loss if isinstance(loss, nn.Module) else None, forward=batches == "forward")
    monitor.on_close(hooks.detach)
    return monitor


class _Hooks:
    """The hooks of one monitor, and the state they share within a step."""

    def __init__(
        self,
        monitor: Monitor,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        parameters: dict[str, nn.Parameter],
        scaler: Scaler | None,
    ) -> None:
        self._monitor, self._model, self._optimizer, self._scaler = monitor, model, optimizer, scaler
        self._parameters = parameters
        self._own = monitor.view == "raw" and not isinstance(optimizer, PrivateOptimizer)
        self._read = reader(monitor.view, parameters, optimizer)
        self._handles: list[Any] = []
        self._step_handle: Any = None
        self._in_step_hook, self._dead = False, False
        self._seen_training = False
        self._measuring = False  # the monitor itself is calling the loss
        self._raw: dict[str, Tensor] = {}
        monitor.plan({n: tuple(p.shape) for n, p in parameters.items()}, next(iter(parameters.values())).device)

    def __reduce__(self) -> tuple[Callable[[], _Hooks], tuple[()]]:
        """A model that is saved or copied takes hooks along that do nothing: neither the monitor nor what it saw travels with it."""
        return _asleep, ()

    def attach(self, criterion: nn.Module | None, *, forward: bool) -> None:
        self._handles.append(self._model.register_forward_hook(self._output))
        if forward:
            self._handles.append(self._model.register_forward_pre_hook(self._forward, with_kwargs=True))
        self._step_handle = stepping_optimizer(self._optimizer).register_step_pre_hook(self._before_step)
        self._handles.append(self._step_handle)
        if criterion is not None:
            self._handles.append(criterion.register_forward_pre_hook(self._criterion, with_kwargs=True))
        if not isinstance(self._optimizer, PrivateOptimizer):  # Opacus keeps its gradients next to p.grad
            for parameter in self._parameters.values():
                self._handles.append(parameter.register_hook(self._differentiate))
        if self._own:
            for name, parameter in self._parameters.items():
                self._handles.append(parameter.register_hook(self._own_gradient(name, parameter)))

    def detach(self) -> None:
        """Removes the hooks. Called from within the step hook, it leaves that one in place until the next call, but inactive.

        torch iterates over its step hooks without a copy: removing one there would break the step of the user's loop.
        """
        self._dead, self._raw = True, {}
        staying = [self._step_handle] if self._in_step_hook else []
        for handle in self._handles:
            if handle not in staying:
                handle.remove()
        self._handles = staying

    def _forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._monitor.looking:
            return
        self._seen_training = self._seen_training or model.training
        if not torch.is_grad_enabled() or (self._seen_training and not model.training):
            return  # validation
        with self._monitor.guard.around("reading the batch", then=self._monitor.close):
            given = next((kwargs[name] for name in LABELS if isinstance(kwargs.get(name), Tensor)), None)
            rest = {name: value for name, value in kwargs.items() if name not in LABELS}
            named = None if args or given is None else kwargs
            packed = self._monitor.see(batch_of(args, rest), repeatable=only_tensor(args, kwargs), named=named)
            if given is not None and not packed:
                self._monitor.labels(given)

    def _output(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Keeps the output's gradient, which holds the labels of a loss on class scores."""
        if not self._monitor.looking or not isinstance(output, Tensor) or not output.requires_grad:
            return
        if self._seen_training and not model.training:
            return
        with self._monitor.guard.around("reading the output", then=self._monitor.close):
            keep = self._monitor.expect_output()
            if keep is not None:
                at = output.detach()  # the hook must not hold the output itself, which holds the hook
                output.register_hook(lambda gradient: keep(at, gradient))

    def _criterion(self, criterion: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._measuring or not self._monitor.looking or not torch.is_grad_enabled():
            return
        if self._seen_training and not self._model.training:
            return
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if isinstance(target, Tensor):
            with self._monitor.guard.around("reading the labels", then=self._monitor.close):
                self._monitor.labels(target)

    def _differentiate(self, gradient: Tensor) -> None:
        """Called for each parameter in a backward pass, before its gradient is accumulated."""
        if self._monitor.looking and self._monitor.differentiate(self._fresh):
            self._raw = {}

    def _fresh(self) -> bool:
        """Whether no parameter has a gradient: None everywhere, or zeros."""
        with self._monitor.guard.around("reading the gradient", then=self._monitor.close):
            grads = (p.grad for p in self._parameters.values())
            return all(g is None or (not g.is_sparse and not bool(g.any())) for g in grads)
        return False

    def _own_gradient(self, name: str, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        """Collects the gradient of this process, before it is accumulated, averaged over processes or clipped."""

        def hook(gradient: Tensor) -> None:
            if not self._monitor.looking:
                return
            if (
                parameter.grad is None or name not in self._raw
            ):  # the first of a step, or the previous one was discarded
                self._raw[name] = gradient.detach().clone()
            else:
                self._raw[name] += gradient.detach()

        return hook

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._dead:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself
        if closure is None:
            self._in_step_hook = True
            try:
                self._step()
            finally:
                self._in_step_hook = False
            return None
        # the gradient of step(closure) does not exist yet: it is read right after the closure has computed it
        read = self._after_first(closure)
        return ((args[0], read, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": read})

    def _after_first(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        calls = 0

        def read() -> Any:
            nonlocal calls
            value = closure()
            calls += 1
            if self._dead:
                return value
            if calls == 1:
                self._step()
            else:
                self._monitor.guard.say(
                    "closure", "leakgauge monitor: the closure ran more than once in a step; its first gradient counts"
                )
            return value

        return read

    def _step(self) -> None:
        monitor, self._measuring = self._monitor, True
        with monitor.guard.around("reading the gradient", then=monitor.close), torch.no_grad():
            if monitor.looking:
                monitor.finish(self._own_signal() if self._own else self._read())
            else:
                self._raw = {}
                monitor.skip()
        self._measuring = False

    def _own_signal(self) -> dict[str, Tensor | None]:
        found, self._raw = self._raw, {}
        signal = {name: found.get(name) for name in self._parameters}
        if self._scaler is None:
            return signal
        scale = self._scaler.get_scale()
        return {name: None if g is None else g / scale for name, g in signal.items()}


class _NoMonitor:
    looking = False


def _asleep() -> _Hooks:
    hooks = _Hooks.__new__(_Hooks)
    vars(hooks).update(_monitor=_NoMonitor(), _dead=True, _measuring=False, _handles=[], _step_handle=None)
    return hooks
