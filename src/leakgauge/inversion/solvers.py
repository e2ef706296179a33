"""How the objective is minimised: first-order descent over all restarts at once, or L-BFGS restart by restart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core import Space
from leakgauge.engine import RecordedStep
from leakgauge.errors import BadInput
from leakgauge.inversion.draws import Draws

Rows = slice | Tensor
"""Which rows of the search: a slice, or their indices."""

Losses = Callable[[Tensor, Tensor | None, Rows], Tensor]
"""``losses(x, label_logits, rows)``: the objective of each candidate of those rows, shape (rows,)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Moving:
    """What a solver is given: candidates ``x`` (rows, B, ...) and, if labels are optimised, their ``logits``, both changed in place.

    ``losses`` judges them, ``space`` says what a valid candidate is. ``draws`` are the random numbers of the rows, for solvers that use
    any; ``labels`` (rows, B) their classes where these are known.
    """

    x: Tensor
    losses: Losses
    space: Space
    draws: Draws
    logits: Tensor | None = None
    labels: Tensor | None = None


class Mover(Protocol):
    """Moves the candidates once per call; ``note`` says how it ran.

    ``judge`` computes the losses once more without moving. ``keep`` continues with the ``count`` rows of lowest ``best`` only.
    """

    @property
    def note(self) -> str: ...
    def __call__(self, number: int, /) -> None: ...
    def judge(self) -> None: ...
    def keep(self, count: int, best: Tensor) -> None: ...


class Solver(Protocol):
    """``begin`` returns the mover that the loop calls ``steps`` times.

    ``together``: whether all rows are judged in one call (and may share an engine's batch).
    """

    @property
    def steps(self) -> int: ...
    @property
    def together(self) -> bool: ...
    def begin(self, given: Moving, /) -> Mover: ...


MOST_STEPS = 10**9
LARGEST_LR = 1e30
"""A step of more is infinite in 32 bits."""


def _check_lr(lr: float) -> None:
    if not isinstance(lr, int | float) or not 0 < lr <= LARGEST_LR:
        raise BadInput(f"an attack needs a positive learning rate, got {lr!r}; the largest is {LARGEST_LR:g}")


class Optimizer(Protocol):
    """Creates a torch optimizer over the given tensors."""

    @property
    def lr(self) -> float: ...
    def make(self, variables: list[Tensor]) -> torch.optim.Optimizer: ...


@dataclass(frozen=True)
class Adam:
    """Ref: Kingma and Ba 2015, Algorithm 1 — Adam"""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def make(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        lr, capturable = _learning_rate(self.lr, variables)
        return torch.optim.Adam(variables, lr=lr, betas=self.betas, capturable=capturable)


@dataclass(frozen=True)
class AdamW(Adam):
    """Ref: Loshchilov and Hutter 2019, Algorithm 2 — Adam with decoupled weight decay"""

    weight_decay: float = 0.01

    def make(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        lr, capturable = _learning_rate(self.lr, variables)
        return torch.optim.AdamW(
            variables, lr=lr, betas=self.betas, weight_decay=self.weight_decay, capturable=capturable
        )


def _learning_rate(lr: float, variables: list[Tensor]) -> tuple[float | Tensor, bool]:
    """On a GPU the rate is a tensor there, so a recorded step can read a new value."""
    if variables[0].device.type == "cuda":
        return torch.tensor(lr, device=variables[0].device), True
    return lr, False


class Schedule(Protocol):
    """Factor on the learning rate at ``progress`` in [0, 1)."""

    def __call__(self, progress: float, /) -> float: ...


@dataclass(frozen=True)
class Steady:
    def __call__(self, progress: float, /) -> float:
        return 1.0


@dataclass(frozen=True)
class StepDecay:
    """Multiplies by ``factor`` at each fraction ``at`` of the run; the defaults are Geiping et al.'s.

    >>> [round(StepDecay()(p), 4) for p in (0.0, 0.4, 0.9)]
    [1.0, 0.1, 0.001]
    """

    at: tuple[float, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: float = 0.1

    def __call__(self, progress: float, /) -> float:
        return self.factor ** sum(progress >= fraction for fraction in self.at)


@dataclass(frozen=True)
class CosineDecay:
    """From 1 to 0 along half a cosine."""

    def __call__(self, progress: float, /) -> float:
        return 0.5 * (1 + math.cos(math.pi * progress))


class GradientMap(Protocol):
    """Changes the gradient with respect to the image before the optimizer sees it."""

    def __call__(self, gradient: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Sign:
    """Only the sign counts.

    Ref: Geiping et al. 2020, numerical reconstruction method — signed gradient descent
    """

    def __call__(self, gradient: Tensor, /) -> Tensor:
        return gradient.sign()


@dataclass(frozen=True)
class SignPerRestart:
    """Only the sign counts, for those restarts r with ``signed[r]``."""

    signed: tuple[bool, ...]

    def __call__(self, gradient: Tensor, /) -> Tensor:
        by_restart = gradient.unflatten(0, (-1, len(self.signed)))
        rows = [by_restart[:, r].sign() if sign else by_restart[:, r] for r, sign in enumerate(self.signed)]
        return torch.stack(rows, 1).flatten(0, 1)


def check_steps(steps: int) -> None:
    if not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
        raise BadInput(
            f"an attack needs an integer number of steps of at least 1 and at most {MOST_STEPS}, got {steps!r}"
        )


@dataclass(frozen=True)
class Descent:
    """``steps`` steps of ``optimizer`` on all restarts at once; they influence each other only through a coupling term.

    ``gradient`` maps apply to the image only, in order; ``project`` keeps candidates valid images.
    With ``noise`` each step also adds noise · λ · N(0, 1) to the image, where λ is the learning rate of that step.
    """

    optimizer: Optimizer = field(default_factory=Adam)
    steps: int = 1000
    gradient: tuple[GradientMap, ...] = ()
    schedule: Schedule = field(default_factory=Steady)
    project: bool = True
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if not self.noise >= 0:
            raise BadInput(f"the noise of a step must not be negative, got {self.noise!r}")

    @property
    def together(self) -> bool:
        return True

    def begin(self, given: Moving, /) -> Mover:
        return _DescentMover(self, given)


class _DescentMover:
    def __init__(self, of: Descent, given: Moving) -> None:
        self.of, self.x, self.logits, self.losses = of, given.x, given.logits, given.losses
        self.space, self.draws = given.space, given.draws
        self.rows: Rows = slice(None)
        self._shake = torch.zeros_like(self.x) if of.noise else None
        self.optimizer = of.optimizer.make(self.variables)
        self._captured = RecordedStep(self._move) if self.x.device.type == "cuda" else None

    @property
    def variables(self) -> list[Tensor]:
        return [self.x] if self.logits is None else [self.x, self.logits]

    @property
    def note(self) -> str:
        return "" if self._captured is None else self._captured.note

    def __call__(self, number: int, /) -> None:
        rate = self.of.optimizer.lr * self.of.schedule(number / self.of.steps)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self._shake is not None:  # drawn outside the recorded step, into a tensor that the step reads
            drawn = self.draws.take(self.rows).normal(number, self.x)
            self._shake.copy_(drawn.mul_(rate * self.of.noise))
        if self._captured is None:
            self._move()
        else:
            self._captured()

    def _move(self) -> None:
        total = self.losses(self.x, self.logits, self.rows).sum()
        if total.requires_grad:
            grads = list(torch.autograd.grad(total, self.variables, allow_unused=True))
        else:  # a blind run without priors has no gradient
            grads = [None] * len(self.variables)
        for variable, gradient in zip(self.variables, grads, strict=True):
            variable.grad = torch.zeros_like(variable) if gradient is None else gradient
        for change in self.of.gradient:
            assert self.x.grad is not None
            self.x.grad = change(self.x.grad)
        self.optimizer.step()
        with torch.no_grad():
            if self._shake is not None:
                self.x.add_(self._shake)
            if self.of.project:
                self.x.copy_(self.space.project(self.x))

    def judge(self) -> None:
        self.losses(self.x.detach(), None if self.logits is None else self.logits.detach(), self.rows)

    def keep(self, count: int, best: Tensor) -> None:
        active = torch.arange(len(best), device=best.device)[self.rows]
        chosen = best[active].argsort()[:count]
        self.rows = active[chosen]
        before, states = self.variables, self.optimizer.state
        self.x = self.x.detach()[chosen].clone().requires_grad_()
        self._shake = None if self._shake is None else torch.zeros_like(self.x)
        self.logits = None if self.logits is None else self.logits.detach()[chosen].clone().requires_grad_()
        self.optimizer = self.of.optimizer.make(self.variables)
        for old, new in zip(before, self.variables, strict=True):
            self.optimizer.state[new] = {
                name: value[chosen].clone() if isinstance(value, Tensor) and value.dim() else value
                for name, value in states[old].items()
            }
        self._captured = None if self._captured is None else RecordedStep(self._move)


@dataclass(frozen=True)
class LBFGS:
    """``steps`` outer steps of L-BFGS with ``iterations`` inner ones, each restart with its own memory.

    Ref: Zhu et al. 2019, section 4.1 — L-BFGS with learning rate 1, history 100, 20 iterations a step
    """

    lr: float = 1.0
    steps: int = 300
    iterations: int = 20
    history: int = 100
    line_search: bool = False

    def __post_init__(self) -> None:
        check_steps(self.steps)
        _check_lr(self.lr)

    @property
    def together(self) -> bool:
        return False

    def begin(self, given: Moving, /) -> Mover:
        return _EachRow([_LBFGSRow(self, given, row) for row in range(len(given.x))])


class _LBFGSRow:
    """One restart with its own optimizer."""

    def __init__(self, of: LBFGS, given: Moving, row: int) -> None:
        self.losses, self.row = given.losses, slice(row, row + 1)
        self.x = given.x.detach()[self.row].clone().requires_grad_()
        self.logits = None if given.logits is None else given.logits.detach()[self.row].clone().requires_grad_()
        self.variables = [self.x] if self.logits is None else [self.x, self.logits]
        self.optimizer = torch.optim.LBFGS(
            self.variables,
            lr=of.lr,
            max_iter=of.iterations,
            history_size=of.history,
            line_search_fn="strong_wolfe" if of.line_search else None,
        )

    def closure(self) -> Tensor:
        self.optimizer.zero_grad()
        total = self.judge().sum()
        if total.requires_grad:
            total.backward(inputs=self.variables)
        return total

    def judge(self) -> Tensor:
        return self.losses(self.x, self.logits, self.row)


class _EachRow:
    note = ""

    def __init__(self, rows: list[_LBFGSRow]) -> None:
        self.rows = rows

    def __call__(self, number: int, /) -> None:
        for row in self.rows:
            row.optimizer.step(row.closure)

    def judge(self) -> None:
        for row in self.rows:
            row.judge()

    def keep(self, count: int, best: Tensor) -> None:
        raise BadInput("L-BFGS moves each restart separately; use successive halving with Descent")
