"""A descent that may be stopped between two steps and goes on later, in another process too, as if it had not been stopped."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.core import Space
from leakgauge.errors import BadInput
from leakgauge.inversion import Descent
from leakgauge.inversion.draws import Draws
from leakgauge.inversion.solvers import Losses, Mover, Optimizer, Rows
from reproductions.april.pieces import Clock

LOOK = 10
"""Steps between two looks at the clock: on a GPU a look waits for the device, without which the host would run minutes ahead."""
KEEP = 60.0
"""Seconds after which the state is written down in any case, for a run that is killed."""


class Resumable:
    """A solver that does the steps of ``descent`` as far as ``clock`` allows and keeps where it is under ``path``.

    The attack that it is given to always ends: once time is out, nothing moves any more and the attack returns the best so
    far. ``reached`` says after how many steps; with as many as ``steps`` the state is of no use and removed by ``forget``. ``key``
    says what the state belongs to: one of anything else, or of other shapes, is not taken up. Restarts that do not fit into memory
    together are several searches, each with a state of its own.
    """

    def __init__(self, descent: Descent, path: Path, clock: Clock, key: dict[str, Any]) -> None:
        self.descent, self.path, self.clock, self.key = descent, path, clock, key
        self.movers: list[_Moving] = []

    def __repr__(self) -> str:
        return repr(self.descent)

    @property
    def steps(self) -> int:
        return self.descent.steps

    @property
    def together(self) -> bool:
        return self.descent.together

    @property
    def reached(self) -> int:
        """Steps that every row has made."""
        return min((mover.done for mover in self.movers), default=0)

    @property
    def seconds_before(self) -> float:
        """What earlier calls spent on the steps that were taken up."""
        return sum(mover.seconds_before for mover in self.movers)

    def begin(
        self, x: Tensor, logits: Tensor | None, losses: Losses, space: Space, draws: Draws | None = None
    ) -> Mover:
        ended = [mover for mover in self.movers if mover.stopped or mover.done == self.steps]
        self.movers = ended  # any other ran out of memory, and its rows come again in smaller pieces
        self.movers.append(_Moving(self, self._path(len(ended)), x, logits, losses, space, draws))
        return self.movers[-1]

    def forget(self) -> None:
        for number in range(len(self.movers)):
            self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}.pt")


class _Kept:
    """An optimizer's maker that can be asked for what it made."""

    def __init__(self, of: Optimizer) -> None:
        self.of, self.lr = of, of.lr
        self.made: torch.optim.Optimizer | None = None

    def make(self, variables: list[Tensor]) -> torch.optim.Optimizer:
        self.made = self.of.make(variables)
        return self.made


class _Moving:
    """Keeps the best candidate beside the search, which keeps its own, since a later call must be able to give it back to its search."""

    def __init__(
        self,
        of: Resumable,
        path: Path,
        x: Tensor,
        logits: Tensor | None,
        losses: Losses,
        space: Space,
        draws: Draws | None,
    ) -> None:
        self.of, self.path, self.losses = of, path, losses
        self.variables = [x] if logits is None else [x, logits]
        self.best = torch.full((len(x),), torch.inf, device=x.device)
        self.best_at = [v.detach().clone() for v in self.variables]
        self.optimizer = _Kept(of.descent.optimizer)
        self.began = self.kept = time.monotonic()
        self.seconds_before, self.done, self.stopped = 0.0, 0, False
        self.moving = replace(of.descent, optimizer=self.optimizer).begin(x, logits, self._judged, space, draws)
        self._take_up()

    @property
    def note(self) -> str:
        return self.moving.note

    def __call__(self, number: int, /) -> None:
        if number < self.done or self.stopped:
            return
        self.moving(number)
        self.done = number + 1
        if self.done % LOOK and self.done < self.of.steps:
            return
        if self.best.device.type == "cuda":
            torch.cuda.synchronize(self.best.device)
        self.stopped = not self.of.clock.allows(0)
        if self.stopped or self.done == self.of.steps or time.monotonic() > self.kept + KEEP:
            self._keep()

    def judge(self) -> None:
        if self.done == self.of.steps:  # else the image of the last step is judged when it goes on
            self.moving.judge()

    def keep(self, count: int, best: Tensor) -> None:
        raise BadInput("a descent that goes on later keeps all its restarts; halving is for one that runs at once")

    def _judged(self, x: Tensor, logits: Tensor | None, rows: Rows) -> Tensor:
        losses = self.losses(x, logits, rows)
        with torch.no_grad():
            better = losses < self.best  # False for NaN
            self.best.copy_(torch.where(better, losses, self.best))
            for kept, value in zip(self.best_at, [x] if logits is None else [x, logits], strict=True):
                kept.copy_(torch.where(better.view(-1, *[1] * (kept.dim() - 1)), value, kept))
        return losses

    def _keep(self) -> None:
        made = self.optimizer.made
        assert made is not None
        state = {
            "key": self.of.key,
            "done": self.done,
            "seconds": self.seconds_before + time.monotonic() - self.began,
            "at": [v.detach().cpu() for v in self.variables],
            "best_at": [v.cpu() for v in self.best_at],
            "optimizer": [{name: value.cpu() for name, value in made.state[v].items()} for v in self.variables],
        }
        part = self.path.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.path)
        self.kept = time.monotonic()

    def _take_up(self) -> None:
        if not self.path.is_file():
            return
        state = torch.load(self.path, map_location=self.best.device, weights_only=True)
        made = self.optimizer.made
        assert made is not None
        shapes = [v.shape for v in self.variables]
        if state["key"] != self.of.key or [v.shape for v in state["at"]] != shapes:
            print(f"{self.path.name} belongs to another run and is not taken up", flush=True)
            return
        with torch.no_grad():
            for variable, value in zip(self.variables, state["at"], strict=True):
                variable.copy_(value)
            for variable, own in zip(self.variables, state["optimizer"], strict=True):
                made.state[variable] = own
            self._judged(state["best_at"][0], state["best_at"][1] if len(shapes) == 2 else None, slice(None))
        self.done, self.seconds_before = state["done"], state["seconds"]
