"""The two recipes by which decoders are trained: optimiser, schedule, length and batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

SHORTEST_CYCLE = 4
"""Steps below which a rate cannot rise and fall; it stays where it is."""


class Steps(Protocol):
    """A recipe under way: it hears of every step and of every epoch with its held-out loss."""

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...
    def after_step(self) -> None: ...
    def after_epoch(self, held_out: float) -> None: ...


class Recipe(Protocol):
    """How a decoder is trained: how long, in which batches, and by which optimiser and schedule."""

    @property
    def epochs(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def batch(self) -> int: ...
    def begin(self, parameters: Iterable[nn.Parameter], steps_an_epoch: int, /) -> Steps: ...


@dataclass(frozen=True)
class OneCycle:
    """AdamW whose rate rises to ``lr`` and falls to nothing once, its momentum the other way round.

    A dozen epochs do what the paper's recipe does in many.
    """

    epochs: int = 12
    lr: float = 2e-3
    batch: int = 64
    weight_decay: float = 0.01

    def begin(self, parameters: Iterable[nn.Parameter], steps_an_epoch: int, /) -> Steps:
        known = list(parameters)
        one_by_one: dict[str, Any] = {"foreach": False} if _recorded(known) else {}
        optimizer = torch.optim.AdamW(
            known, **_recordable(known, self.lr), weight_decay=self.weight_decay, **one_by_one
        )
        momentum = torch.zeros((), device=known[0].device) if _recorded(known) else None
        total = self.epochs * steps_an_epoch
        if total < SHORTEST_CYCLE:
            return _Constant(optimizer)
        rising = 0.2 if total >= 10 else 0.5  # torch divides by zero where the rising part has a single step
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total, pct_start=rising)
        return _OneCycleSteps(optimizer, schedule, momentum)


@dataclass(frozen=True)
class _Constant:
    optimizer: torch.optim.Optimizer

    def after_step(self) -> None:
        pass

    def after_epoch(self, held_out: float) -> None:
        pass


@dataclass(frozen=True)
class _OneCycleSteps:
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.OneCycleLR
    momentum: Tensor | None
    """Where a recorded step reads β₁, which the schedule would replace by numbers that a recording does not see."""

    def __post_init__(self) -> None:
        self._place_momentum()

    def after_step(self) -> None:
        self.schedule.step()
        self._place_momentum()

    def _place_momentum(self) -> None:
        if self.momentum is not None:
            for group in self.optimizer.param_groups:
                first, second = group["betas"]
                group["betas"] = (self.momentum.fill_(first), second)

    def after_epoch(self, held_out: float) -> None:
        pass


@dataclass(frozen=True)
class Plateau:
    """Adam with β₁ = 0.5 and AMSGrad; the rate is halved when the held-out loss has not fallen for ``patience`` epochs.

    Deviations: the released code watches the loss on the test set and picks its best epoch there; here both are done on
    a part of the public images.

    Ref: Liu and Zhu 2025, section 4.1 — training of the inversion models
    """

    epochs: int = 100
    lr: float = 2e-4
    batch: int = 128
    betas: tuple[float, float] = (0.5, 0.999)
    patience: int = 8

    def begin(self, parameters: Iterable[nn.Parameter], steps_an_epoch: int, /) -> Steps:
        known = list(parameters)
        groups: list[dict[str, Any]] = [{"params": known}]
        if _recorded(known):  # each with a rate of its own, which the schedule changes in place
            groups = [group | _recordable(known, self.lr) for group in fused_where_possible(known)]
        optimizer = torch.optim.Adam(groups, lr=self.lr, betas=self.betas, amsgrad=True)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=self.patience)
        return _PlateauSteps(optimizer, schedule)


@dataclass(frozen=True)
class _PlateauSteps:
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.ReduceLROnPlateau

    def after_step(self) -> None:
        pass

    def after_epoch(self, held_out: float) -> None:
        self.schedule.step(held_out)


def _recorded(parameters: list[nn.Parameter]) -> bool:
    """On a GPU a step is recorded once and replayed, so what changes between steps must be a tensor there."""
    return parameters[0].is_cuda


def _recordable(parameters: list[nn.Parameter], lr: float) -> dict[str, Any]:
    """Settings with which Adam can be recorded."""
    if not _recorded(parameters):
        return {"lr": lr}
    return {"lr": torch.tensor(lr, device=parameters[0].device), "capturable": True}


def fused_where_possible(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Groups for Adam on a GPU: one kernel for all parameters that it takes, and several for the others.

    The fused Adam takes β₁ as a number, which must not change where a step is recorded. It refuses gradients whose strides are not those of
    the parameter, as they may be in dimensions of size 1, where two layouts are the same memory: those of 1×1 convolutions, say.
    """
    fused, others = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in parameters:
        (others if parameter.dim() > 2 and 1 in parameter.shape else fused).append(parameter)
    groups: list[dict[str, Any]] = [{"params": fused, "fused": True}, {"params": others, "foreach": True}]
    return [group for group in groups if group["params"]]
