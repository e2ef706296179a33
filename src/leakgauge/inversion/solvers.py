"""How the objective is made small: first-order descent over all restarts at once, or L-BFGS restart by restart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core import Space
from leakgauge.errors import BadInput

Losses = Callable[[Tensor, Tensor | None, slice], Tensor]
"""``losses(x, label_logits, rows)``: the objective of each candidate of those rows, shape (rows,)."""

Step = Callable[[int], None]
"""Moves the candidates once; the argument is the number of the step."""


class Solver(Protocol):
    """``begin`` gives the step function that the one loop calls ``steps`` times. x and logits are changed in place."""

    @property
    def steps(self) -> int: ...
    def begin(self, x: Tensor, logits: Tensor | None, losses: Losses, space: Space) -> Step: ...


def _check_lr(lr: float) -> None:
    if not isinstance(lr, int | float) or not lr > 0:
        raise BadInput(f"an attack needs a positive learning rate, got {lr!r}")


class Optimizer(Protocol):
    """Makes a torch optimizer over the given tensors."""

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
        return torch.optim.Adam(variables, lr=self.lr, betas=self.betas)


@dataclass(frozen=True)
class AdamW:
    """Ref: Loshchilov and Hutter 2019, Algorithm 2 — Adam with decoupled weight decay"""

    lr: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_lr(self.lr)

    def make(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(variables, lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)


class Schedule(Protocol):
    """Factor on the learning rate at ``progress`` in [0, 1)."""

    def __call__(self, progress: float, /) -> float: ...


@dataclass(frozen=True)
class Steady:
    def __call__(self, progress: float, /) -> float:
        return 1.0


@dataclass(frozen=True)
class StepDecay:
    """Times ``factor`` at each fraction ``at`` of the run; the defaults are Geiping et al.'s.

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


def _check_steps(steps: int) -> None:
    if not isinstance(steps, int) or steps < 1:
        raise BadInput(f"an attack needs at least 1 step, a whole number, got {steps!r}")


@dataclass(frozen=True)
class Descent:
    """``steps`` steps of ``optimizer`` on all restarts together; they do not influence each other.

    ``gradient`` maps apply to the image only, in order; ``project`` keeps candidates inside the box of valid images.
    """

    optimizer: Optimizer = field(default_factory=Adam)
    steps: int = 1000
    gradient: tuple[GradientMap, ...] = ()
    schedule: Schedule = field(default_factory=Steady)
    project: bool = True

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def begin(self, x: Tensor, logits: Tensor | None, losses: Losses, space: Space) -> Step:
        variables = [x] if logits is None else [x, logits]
        optimizer = self.optimizer.make(variables)

        def step(number: int) -> None:
            total = losses(x, logits, slice(None)).sum()
            if total.requires_grad:
                grads = list(torch.autograd.grad(total, variables, allow_unused=True))
            else:  # a blind run without priors has nothing to follow
                grads = [None] * len(variables)
            for variable, gradient in zip(variables, grads, strict=True):
                variable.grad = torch.zeros_like(variable) if gradient is None else gradient
            for change in self.gradient:
                assert x.grad is not None
                x.grad = change(x.grad)
            for group in optimizer.param_groups:
                group["lr"] = self.optimizer.lr * self.schedule(number / self.steps)
            optimizer.step()
            if self.project:
                with torch.no_grad():
                    x.copy_(space.project(x))

        return step


@dataclass(frozen=True)
class LBFGS:
    """``steps`` outer steps of L-BFGS with ``iterations`` inner ones, each restart with a memory of its own.

    Ref: Zhu et al. 2019, section 4.1 — L-BFGS with learning rate 1, history 100, 20 iterations a step
    """

    lr: float = 1.0
    steps: int = 300
    iterations: int = 20
    history: int = 100
    line_search: bool = False

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_lr(self.lr)

    def begin(self, x: Tensor, logits: Tensor | None, losses: Losses, space: Space) -> Step:
        rows = [self._row(x, logits, losses, row) for row in range(len(x))]

        def step(number: int) -> None:
            for move in rows:
                move()

        return step

    def _row(self, x: Tensor, logits: Tensor | None, losses: Losses, row: int) -> Callable[[], None]:
        own = slice(row, row + 1)
        mine = x.detach()[own].clone().requires_grad_()
        label = None if logits is None else logits.detach()[own].clone().requires_grad_()
        variables = [mine] if label is None else [mine, label]
        optimizer = torch.optim.LBFGS(
            variables,
            lr=self.lr,
            max_iter=self.iterations,
            history_size=self.history,
            line_search_fn="strong_wolfe" if self.line_search else None,
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            total = losses(mine, label, own).sum()
            if total.requires_grad:
                total.backward(inputs=variables)
            return total

        def move() -> None:
            optimizer.step(closure)
            with torch.no_grad():
                x[own] = mine
                if logits is not None and label is not None:
                    logits[own] = label

        return move
