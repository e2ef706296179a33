"""What the monitor watches: the embedded training, or the user's script, run as ``python script.py ARGS`` would run it."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from leakgauge.audit.questions.training import Recording, train_watched
from leakgauge.core import Loss, Signal
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.errors import BadInput, LeakgaugeError, one_line
from leakgauge.integrations.user_code import import_file, import_package
from leakgauge.models.lenet import LeNet
from leakgauge.monitor import SignBucket
from leakgauge.monitor.paper import Gap, PaperSchedule, paper_mode
from leakgauge.monitor.views import COMPILED

HINT = "call leakgauge.monitor.watch(model, optimizer) in the script for the one to measure"
STEPS = 1500
PAPER = PaperSchedule(sub_epochs=10, checkpoints=(0, 1, 2, 4, 6, 8, 10), evaluation=20)


def train(recording: Recording, *, steps: int, seed: int) -> None:
    """Trains LeNet from its initialisation for ``steps`` of Adam on 3000 images of Fashion-MNIST."""
    x, labels = _data()
    model, criterion = _model(seed), nn.CrossEntropyLoss()
    train_watched(model, criterion, lambda i: (x[i], labels[i]), recording, samples=len(x), steps=steps, seed=seed)


def read_paper(recording: Recording, *, seed: int, schedule: PaperSchedule = PAPER) -> None:
    """The privacy-token paper's recipe on the same network and images; only the gradients are sketched, to save memory."""
    model = _model(seed)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name.startswith("body.")}
    plan = SignBucket(total=384, layers=3).plan(shapes, device=torch.device("cpu"), seed=seed)

    def sketch(signal: Signal) -> Tensor:
        return plan({name: signal[name] for name in shapes})

    found = paper_mode(
        model, nn.CrossEntropyLoss(), _data(), feature_layer="body.5", gradient_layers=("body.0", "body.2", "body.4"),
        schedule=schedule, sketch=sketch, seed=seed,
    )  # fmt: skip
    for checkpoint in found.checkpoints:
        recording.add_paper(
            {
                "sub_epoch": checkpoint.sub_epoch,
                "accuracy": checkpoint.accuracy,
                "reading": found.reading,
                "paper": checkpoint.paper.gap,
                "collected": _gap(checkpoint.collected),
                "decoy": _gap(checkpoint.controls.decoy),
                "null": _gap(checkpoint.controls.null),
                "held_out": checkpoint.controls.held_out.gap,
            }
        )


def _gap(found: Gap | None) -> float | None:
    return None if found is None else found.gap


def _data() -> tuple[Tensor, Tensor]:
    images, labels = fashion()
    return (images - MEAN[0]) / STD[0], labels


def _model(seed: int) -> nn.Module:
    return LeNet(in_channels=1, side=28, seed=seed)


class Refused(BaseException):
    """Ends the script from within a hook; a script's own ``except Exception`` must not catch it."""


def named_loss(spec: str) -> Loss | nn.Module:
    """The loss that ``spec`` names: a function of torch.nn.functional, a class of torch.nn, file.py:name or package:name.

    >>> named_loss("cross_entropy").__name__, named_loss("CrossEntropyLoss")
    ('cross_entropy', CrossEntropyLoss())
    """
    source, colon, name = spec.rpartition(":")

    if colon:
        importing = import_file if source.endswith(".py") else import_package
        with importing(source) as module:
            found = getattr(module, name, None)
    else:
        found = getattr(F, name, None) or getattr(nn, name, None)
    if isinstance(found, type) and issubclass(found, nn.Module):
        found = found()
    if not callable(found):
        known = "cross_entropy, CrossEntropyLoss, file.py:name or package:name"
        raise BadInput(f"--loss {spec} names no loss; give a function or a module, such as {known}")
    return cast("Loss | nn.Module", found)


def run_script(
    recording: Recording, script: Path, arguments: Sequence[str], *, loss: Loss | nn.Module | None = None
) -> None:
    """Runs ``script`` to its end under the monitor. Its mistakes are raised as one sentence each.

    ``loss`` is for the white-box probe; by default the loss module that the script calls, or else cross entropy.
    """
    if not script.is_file():
        raise BadInput(f"there is no file {script}; give a training script, or nothing for the embedded training")
    with _Finder(recording, loss) as finder, _as_main(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Refused as refusal:
            raise BadInput(str(refusal)) from None
        except SystemExit as left:
            if isinstance(left.code, int) and left.code:
                raise BadInput(f"{script} ended with exit code {int(left.code)}") from left
            if not isinstance(left.code, int | None):  # Python prints it and ends with 1
                raise BadInput(f"{script} ended with {one_line(left)}") from left
        except (LeakgaugeError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's own code may raise anything
            raise BadInput(f"{script} raised {one_line(error)}{_place(error, script)}") from error
    if not finder.stepped:
        raise BadInput(f"{script} ended without a step of a torch optimizer, so nothing was measured")


class _Finder:
    """Hooks all modules and optimizers until the first step shows which of them belong to the training."""

    def __init__(self, recording: Recording, loss: Loss | nn.Module | None) -> None:
        self._recording, self._loss = recording, loss
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
        """Attaches once the first step is done: its batch is gone, so the step counts as not measured."""
        if self._first is not None:
            return
        self._first = optimizer
        model = self._model_of(optimizer)
        called = next(iter(self._losses.values())) if len(self._losses) == 1 else None
        loss = called if self._loss is None else self._loss
        try:
            self._recording.attach(model, optimizer, loss).skip()
        except LeakgaugeError as refusal:
            raise Refused(str(refusal)) from refusal
        self._modules.remove()  # a hook on every module would slow the training down
        self._called, self._losses = {}, {}

    def _model_of(self, optimizer: torch.optim.Optimizer) -> nn.Module:
        """The first module called that holds all parameters of the optimizer: outer modules are called before inner ones."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for module in self._called.values():
            if held <= {id(p) for p in module.parameters()}:
                return module
        raise Refused(
            "no single module that the script called holds all parameters of its optimizer; "
            "call leakgauge.monitor.watch(model, optimizer) in the script"
        )


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Inside, ``sys.argv`` and the search path are as ``python script.py`` sets them. The working directory may change."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with contextlib.chdir(Path.cwd()):
            yield
    finally:
        sys.argv = argv
        sys.path[:] = path


def _place(error: BaseException, script: Path) -> str:
    """The last line of the script itself that was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script)]
    return f" in line {frames[-1].lineno}" if frames else ""
