"""The fast replay of the gradient channel: one forward and one backward pass for all restarts together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels.twice import twice_differentiable
from leakgauge.core import Victim
from leakgauge.engine.observed import Observed
from leakgauge.engine.reference import Replay, Weights, capturing
from leakgauge.engine.rules import Use
from leakgauge.engine.rules.use import row_dot
from leakgauge.engine.tape import Tape


@dataclass(frozen=True, eq=False)
class Recorded:
    """What a tape tells about R candidates: gradients are formed only where they are asked for or cheaper than not."""

    observed: Observed
    weights_of: Mapping[str, list[tuple[Use, Tensor]]]
    biases_of: Mapping[str, list[tuple[Use, Tensor]]]
    lifted: Mapping[str, Tensor]
    captured: Mapping[str, Tensor]
    rows: int
    _formed: dict[str, Tensor] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.observed.signal)

    def gradient(self, name: str) -> Tensor:
        if name not in self._formed:
            parts = [use.weight_gradient(delta) for use, delta in self.weights_of.get(name, ())]
            parts += [use.bias_gradient(delta) for use, delta in self.biases_of.get(name, ())]
            parts += [self.lifted[name]] if name in self.lifted else []
            target = self.observed.signal[name]
            if not parts:  # the loss does not use it
                shape = target.shape[1:] if self.observed.per_row else target.shape
                parts = [target.new_zeros(self.rows, *shape)]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            self._formed[name] = total
        return self._formed[name]

    def _unformed(self, name: str) -> tuple[Use, Tensor] | None:
        """The one use of a weight whose two numbers are cheaper than its gradient; several uses have cross terms."""
        uses = self.weights_of.get(name, ())
        if len(uses) == 1 and name not in self.lifted and name not in self.biases_of and name not in self._formed:
            return uses[0] if uses[0][0].prefers_gram() else None
        return None

    def dot(self, weights: Weights) -> Tensor:
        return _total([w * self._dot(name) for name, w in weights.items()])

    def _dot(self, name: str) -> Tensor:
        short, target = self._unformed(name), self.observed.signal[name]
        return row_dot(self.gradient(name), target) if short is None else short[0].dot(short[1], target)

    def square(self, weights: Weights) -> Tensor:
        return _total([w * self._square(name) for name, w in weights.items()])

    def _square(self, name: str) -> Tensor:
        short = self._unformed(name)
        return self.gradient(name).flatten(1).square().sum(1) if short is None else short[0].square(short[1])

    def l2(self, weights: Weights) -> Tensor:
        return _total([w * self._difference(name).square().sum(1) for name, w in weights.items()])

    def l1(self, weights: Weights) -> Tensor:
        return _total([w * self._difference(name).abs().sum(1) for name, w in weights.items()])

    def _difference(self, name: str) -> Tensor:
        return (self.gradient(name) - self.observed.signal[name]).flatten(1)

    def observed_square(self, weights: Weights) -> Tensor:
        return self.observed.square(weights)

    def inputs(self, name: str) -> Tensor:
        return self.captured[name].unflatten(0, (self.rows, -1))


def _total(terms: list[Tensor]) -> Tensor:
    return torch.stack(terms).sum(0)


@dataclass(frozen=True, eq=False)
class ByRules:
    """Replays the gradient channel for all rows at once by layer rules."""

    victim: Victim
    observed: Observed
    capture: tuple[str, ...] = ()
    _parameters: dict[str, Tensor] = field(init=False)
    _buffers: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parameters", self.victim.parameters())
        object.__setattr__(self, "_buffers", self.victim.buffers())

    def __call__(self, x: Tensor, y: Tensor) -> Replay:
        """Candidates x (R, B, ...) with targets y (R, B) or class probabilities (R, B, C)."""
        keep_graph = torch.is_grad_enabled()
        rows, batch = x.shape[:2]
        watched = {name: self._parameters[name] for name in self.observed.signal}
        with torch.enable_grad(), capturing(self.victim.model, self.capture) as captured:
            flat = (x if x.requires_grad else x.detach().requires_grad_()).flatten(0, 1)
            tape = Tape(watched, rows=rows, batch=batch)
            tape.mark_data(flat)
            with twice_differentiable(), tape:
                output = self.victim(flat, parameters=self._parameters, buffers=self._buffers)
            total = summed_loss(self.victim.loss, output, y)
            deltas = torch.autograd.grad(
                total,
                [*[use.edge for use in tape.uses], *tape.lifted.values()],
                create_graph=keep_graph,
                allow_unused=True,
            )
        return _recorded(tape, deltas, self.observed, captured)


def _recorded(
    tape: Tape, deltas: tuple[Tensor | None, ...], observed: Observed, captured: Mapping[str, Tensor]
) -> Recorded:
    weights: dict[str, list[tuple[Use, Tensor]]] = {}
    biases: dict[str, list[tuple[Use, Tensor]]] = {}
    for use, delta in zip(tape.uses, deltas, strict=False):
        if delta is not None:
            if use.weight is not None:
                weights.setdefault(use.weight, []).append((use, delta))
            if use.bias is not None:
                biases.setdefault(use.bias, []).append((use, delta))
    rest = deltas[len(tape.uses) :]
    lifted = {name: g for name, g in zip(tape.lifted, rest, strict=True) if g is not None}
    return Recorded(observed, weights, biases, lifted, captured, tape.rows)


def summed_loss(loss: Any, output: Any, y: Tensor) -> Tensor:
    """Σ_r loss of restart r, for outputs (R·B, …) and targets (R, B, …).

    Plain cross entropy is a mean over samples, so R times the mean of all is the same; any other loss is asked row by row.
    """
    rows = len(y)
    plain = isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "mean" and loss.weight is None
    if loss is F.cross_entropy or (plain and loss.ignore_index < 0):
        return rows * loss(output, y.flatten(0, 1))
    split = output.unflatten(0, (rows, -1))
    return torch.stack([loss(split[r], y[r]) for r in range(rows)]).sum()
