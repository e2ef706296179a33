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
        optimizer = torch.optim.AdamW(known, **_recordable(known, self.lr), weight_decay=self.weight_decay)
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
        optimizer = torch.optim.Adam(known, **_recordable(known, self.lr, fused=True), betas=self.betas, amsgrad=True)
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


def _recordable(parameters: list[nn.Parameter], lr: float, *, fused: bool = False) -> dict[str, Any]:
    """Settings with which Adam can be recorded. Fused it is one kernel, but takes β₁ as a number, which then must not change."""
    if not _recorded(parameters):
        return {"lr": lr}
    kind = {"fused": True} if fused and not any(map(_ambiguous, parameters)) else {"foreach": fused}
    return {"lr": torch.tensor(lr, device=parameters[0].device), "capturable": True, **kind}


def _ambiguous(parameter: Tensor) -> bool:
    """Whether two layouts in memory are the same for it, as of a 1×1 convolution's: its gradient may come in the other one, which the
    fused Adam refuses.
    """
    return parameter.dim() > 2 and 1 in parameter.shape
