"""The fast replay of the gradient channel: one forward and one backward pass for all restarts together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from leakgauge.channels.output import Along
from leakgauge.channels.rows import as_rows
from leakgauge.channels.twice import twice_differentiable
from leakgauge.core import Victim
from leakgauge.engine.observed import Observed
from leakgauge.engine.reference import Replay, Weights, capturing
from leakgauge.engine.rules import Use
from leakgauge.engine.rules.sums import row_absolute, row_dot, row_square
from leakgauge.engine.tape import Tape

SMALL = 2**15
"""Tensors up to this many entries are compared together with other small ones."""


@dataclass(frozen=True, eq=False)
class TapeReplay:
    """The record of one pass of R candidates. Gradients are formed only if requested or cheaper that way."""

    observed: Observed
    weights_of: Mapping[str, list[tuple[Use, Tensor]]]
    biases_of: Mapping[str, list[tuple[Use, Tensor]]]
    lifted: Mapping[str, Tensor]
    captured: Mapping[str, Tensor]
    rows: int
    _formed: dict[str, Tensor] = field(default_factory=dict)
    _numbers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _laid_out: dict[tuple[str, ...], list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    _compared: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.observed.signal)

    def gradient(self, name: str) -> Tensor:
        if name not in self._formed:
            parts = [use.weight_gradient(delta) for use, delta in self.weights_of.get(name, ())]
            parts += [use.bias_gradient(delta) for use, delta in self.biases_of.get(name, ())]
            parts += [self.lifted[name]] if name in self.lifted else []
            target = self.observed.signal[name]
            if not parts:  # the loss does not use this parameter
                shape = target.shape[1:] if self.observed.per_row else target.shape
                parts = [target.new_zeros(self.rows, *shape)]
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            self._formed[name] = total
        return self._formed[name]

    def _only_use(self, name: str) -> tuple[Use, Tensor] | None:
        """The only use of a weight whose gradient has not been formed; several uses have cross terms."""
        uses = self.weights_of.get(name, [])
        alone = len(uses) == 1 and name not in self.lifted and name not in self.biases_of and name not in self._formed
        return uses[0] if alone else None

    def _unformed(self, name: str) -> tuple[Use, Tensor] | None:
        """The only use of a weight, if its two numbers are cheaper than its gradient."""
        alone = self._only_use(name)
        return alone if alone is not None and alone[0].prefers_gram() else None

    def _split(
        self, weights: Weights
    ) -> tuple[list[tuple[float, tuple[Tensor, Tensor]]], list[tuple[float, Tensor, Tensor]]]:
        """The two numbers of weights whose gradient is not needed, and the remaining weights; many small ones are concatenated."""
        unformed: list[tuple[float, tuple[Tensor, Tensor]]] = []
        formed: dict[float, list[str]] = {}
        for name, weight in weights.items():
            short = self._unformed(name)
            if short is None:
                formed.setdefault(weight, []).append(name)
                continue
            if name not in self._numbers:
                use, delta = short
                self._numbers[name] = use.numbers(delta, self.observed.signal[name])
            unformed.append((weight, self._numbers[name]))
        return unformed, [(w, *piece) for w, names in formed.items() for piece in self._pieces(names)]

    def _pieces(self, names: list[str]) -> list[tuple[Tensor, Tensor]]:
        """Gradients (R, k) and targets (k,) or (R, k). Small tensors are concatenated: each one alone costs a dozen kernels."""
        key = tuple(names)
        if key in self._laid_out:
            return self._laid_out[key]
        kept = 1 if self.observed.per_row else 0
        laid_out = as_rows if kept else Tensor.flatten
        pairs = [(as_rows(self.gradient(n)), laid_out(self.observed.signal[n])) for n in names]
        small = [pair for pair in pairs if pair[0].shape[1] <= SMALL]
        large = [pair for pair in pairs if pair[0].shape[1] > SMALL]
        if len(small) > 1:
            small = [(torch.cat([g for g, _ in small], 1), torch.cat([t for _, t in small], kept))]
        self._laid_out[key] = large + small
        return self._laid_out[key]

    def dot(self, weights: Weights) -> Tensor:
        unformed, formed = self._split(weights)
        return _total([_times(w, dot) for w, (dot, _) in unformed] + [_times(w, row_dot(g, t)) for w, g, t in formed])

    def square(self, weights: Weights) -> Tensor:
        unformed, formed = self._split(weights)
        return _total(
            [_times(w, square) for w, (_, square) in unformed] + [_times(w, row_square(g)) for w, g, _ in formed]
        )

    def l2(self, weights: Weights) -> Tensor:
        return _total([_times(w, square) for w, square, _ in self._differences(weights)])

    def l1(self, weights: Weights) -> Tensor:
        return _total([_times(w, row_absolute(difference)) for w, _, difference in self._differences(weights)])

    def _differences(self, weights: Weights) -> list[tuple[float, Tensor, Tensor]]:
        """‖g − g*‖², (R,), and g − g*, (R, k), with their weight: large tensors alone, small ones of equal weight concatenated."""
        found: list[tuple[float, Tensor, Tensor]] = []
        small: dict[float, list[str]] = {}
        for name, weight in weights.items():
            if self.observed.entries(name) > SMALL:
                found.append((weight, *self._difference(name)))
            else:
                small.setdefault(weight, []).append(name)
        pieces = [(w, g - t) for w, names in small.items() for g, t in self._pieces(names)]
        return found + [(w, row_square(difference), difference) for w, difference in pieces]

    def _difference(self, name: str) -> tuple[Tensor, Tensor]:
        """The difference for a large tensor, formed once even if several distances need it."""
        if name not in self._compared:
            alone = self._only_use(name)
            if alone is not None:
                use, delta = alone
                self._compared[name] = use.compare(delta, self.observed.signal[name])
            else:
                ((gradient, target),) = self._pieces([name])
                difference = gradient - target
                self._compared[name] = row_square(difference), difference
        return self._compared[name]

    def observed_square(self, weights: Weights) -> Tensor:
        return self.observed.square(weights)

    def inputs(self, name: str) -> Tensor:
        return self.captured[name]


def _times(weight: float, value: Tensor) -> Tensor:
    return value if weight == 1 else weight * value


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
            # a model may write into its buffers and read them back (spectral normalisation): so every replay starts from the client's
            buffers = {name: value.clone() for name, value in self._buffers.items()}
            with twice_differentiable(self.victim.model):
                with tape:
                    output = self.victim(flat, parameters=self._parameters, buffers=buffers)
                total = summed_loss(self.victim.loss, output, y)
            wanted: list[Any] = [*[use.edge for use in tape.uses], *tape.lifted.values()]
            deltas = torch.autograd.grad(total, wanted, create_graph=keep_graph, allow_unused=True)
        return _record(tape, deltas, self.observed, captured)


def _record(
    tape: Tape, deltas: tuple[Tensor | None, ...], observed: Observed, captured: Mapping[str, Tensor]
) -> TapeReplay:
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
    by_restart = {name: tape.split(value) for name, value in captured.items()}
    return TapeReplay(observed, weights, biases, lifted, by_restart, tape.rows)


def summed_loss(loss: Any, output: Any, y: Tensor) -> Tensor:
    """Σ_r loss of restart r, for outputs (R·B, …) and targets (R, B, …).

    Plain cross entropy and :class:`Along` are means over samples, so R times the mean of all is the same; any other loss is called row by
    row.
    """
    rows = len(y)
    plain = isinstance(loss, nn.CrossEntropyLoss) and loss.reduction == "mean" and loss.weight is None
    if loss is F.cross_entropy or isinstance(loss, Along) or (plain and loss.ignore_index < 0):
        return rows * loss(output, y.flatten(0, 1))
    size = y.shape[1]
    of_row = [tree_map_only(Tensor, lambda t, r=r: t[r * size : (r + 1) * size], output) for r in range(rows)]
    return torch.stack([loss(one, y[r]) for r, one in enumerate(of_row)]).sum()
