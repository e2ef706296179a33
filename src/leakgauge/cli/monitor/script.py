"""Runs a user's training script as ``python script.py ARGS`` would, and attaches to the first optimizer that steps."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from leakgauge.audit.recording import Recording
from leakgauge.errors import BadInput, LeakgaugeError
from leakgauge.integrations.user_code import one_line
from leakgauge.monitor.views import COMPILED

HINT = "call leakgauge.monitor.watch(model, optimizer) in the script for the one that counts"


class Refused(BaseException):
    """Ends the script from within a hook; no ``except Exception`` of the script's own may hold it up."""


def run(recording: Recording, script: Path, arguments: Sequence[str]) -> None:
    """Runs ``script`` to its end under the monitor. Its mistakes come back as one sentence each."""
    if not script.is_file():
        raise BadInput(f"there is no file {script}; give a training script, or nothing for the embedded training")
    with _Finder(recording) as finder, _as_main(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Refused as refusal:
            raise BadInput(str(refusal)) from None
        except SystemExit as left:
            if left.code not in (None, 0):
                raise BadInput(f"{script} ended with exit code {left.code}") from left
        except LeakgaugeError:
            raise
        except Exception as error:  # the user's own code may raise anything; it is told, with its place
            raise BadInput(f"{script} raised {one_line(error)}{_place(error, script)}") from error
    if not finder.stepped:
        raise BadInput(f"{script} ended without a step of a torch optimizer, so nothing was measured")


class _Finder:
    """Hooks on all modules and all optimizers until the first step says which of them make up the training."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._called: dict[int, nn.Module] = {}
        self._losses: dict[int, nn.Module] = {}
        self._first: torch.optim.Optimizer | None = None
        self._modules: Any = None
        self._optimizers: list[Any] = []

    @property
    def stepped(self) -> bool:
        return self._first is not None

    def __enter__(self) -> _Finder:
        self._modules = register_module_forward_pre_hook(self._forward)
        self._optimizers = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in (self._modules, *self._optimizers):
            handle.remove()
        self._called, self._losses = {}, {}

    def _forward(self, module: nn.Module, inputs: object) -> None:
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise Refused(COMPILED)  # here, before it is compiled: the compiler would trace through this very hook
        if self._first is None and torch.is_grad_enabled():
            kind = self._losses if isinstance(module, _Loss) else self._called
            kind.setdefault(id(module), module)

    def _before(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self._first is not None and optimizer is not self._first:
            names = sorted({type(self._first).__name__, type(optimizer).__name__})
            raise Refused(f"the script steps several optimizers ({', '.join(names)}); {HINT}")

    def _after(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        """Attaches once the first step is done: its batch has passed, so it counts as a step that was not looked at."""
        if self._first is not None:
            return
        self._first = optimizer
        model = self._model_of(optimizer)
        loss = next(iter(self._losses.values())) if len(self._losses) == 1 else None
        try:
            self._recording.attach(model, optimizer, loss).skip()
        except LeakgaugeError as refusal:
            raise Refused(str(refusal)) from refusal
        self._modules.remove()  # a hook on every module would slow the training down
        self._called, self._losses = {}, {}

    def _model_of(self, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The first module called whose parameters are all that the optimizer holds: outer ones are called before inner."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for module in self._called.values():
            if held <= {id(p) for p in module.parameters()}:
                return module
        raise Refused(
            "the script's optimizer trains parameters of no single module that was called; "
            "call leakgauge.monitor.watch(model, optimizer) in the script"
        )


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Inside, ``sys.argv`` and the search path are as ``python script.py`` sets them."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path


def _place(error: Exception, script: Path) -> str:
    """The last line of the script itself that was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script)]
    return f" in line {frames[-1].lineno}" if frames else ""
