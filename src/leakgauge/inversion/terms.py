"""An objective is a weighted sum of terms, written like its equation: ``Cosine() + 0.1 * TotalVariation()``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.core import Victim
from leakgauge.engine import Replay
from leakgauge.errors import Inapplicable


@dataclass(frozen=True, eq=False)
class Candidate:
    """What a term may use: R candidates x (R, B, ...) and, unless the run is blind, their replay.

    Consecutive groups of ``restarts`` rows are restarts of one observation; None means that all rows are. ``targets`` (R, B, ...) are
    what the loss was replayed with.
    """

    x: Tensor
    victim: Victim
    replay: Replay | None
    restarts: int | None = None
    targets: Tensor | None = None

    def groups(self) -> Tensor:
        """The candidates by observation, (observations, restarts, B, ...)."""
        return self.x.unflatten(0, (-1, self.restarts or len(self.x)))

    def require_replay(self) -> Replay:
        if self.replay is None:
            raise Inapplicable("this term compares with the observed signal, but the run has none")
        return self.replay


class Term(ABC):
    """One summand of an objective: a number per restart, shape (R,). Weights belong to the sum, not to the term."""

    reads_signal: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False
    """Whether the term needs whole gradients, not only their norms and inner products with the observation."""
    couples_restarts: ClassVar[bool] = False
    """Whether a restart's value depends on the other restarts of its observation, which must then run together."""

    @abstractmethod
    def __call__(self, at: Candidate, /) -> Tensor: ...

    def captures(self, victim: Victim) -> tuple[str, ...]:
        """Names of the modules whose inputs the term needs."""
        return ()

    def note(self, victim: Victim) -> str:
        """A remark about this term on this victim for the reader of the result; usually empty."""
        return ""

    def parts(self) -> tuple[tuple[float, Term], ...]:
        return ((1.0, self),)

    def __add__(self, other: Term) -> Sum:
        return Sum(self.parts() + other.parts())

    def __mul__(self, weight: float) -> Sum:
        return Sum(tuple((weight * w, term) for w, term in self.parts()))

    __rmul__ = __mul__


@dataclass(frozen=True, repr=False)
class Sum(Term):
    """Σ weight · term; terms of weight zero cost nothing."""

    terms: tuple[tuple[float, Term], ...] = ()

    def __call__(self, at: Candidate, /) -> Tensor:
        total = at.x.new_zeros(len(at.x))
        for weight, term in self.terms:
            if weight:
                total = total + weight * term(at)
        return total

    def captures(self, victim: Victim) -> tuple[str, ...]:
        names = (name for weight, term in self.terms if weight for name in term.captures(victim))
        return tuple(dict.fromkeys(names))

    def note(self, victim: Victim) -> str:
        return "; ".join(filter(None, (term.note(victim) for weight, term in self.terms if weight)))

    def parts(self) -> tuple[tuple[float, Term], ...]:
        return self.terms

    def without_signal(self) -> Sum:
        """Only the terms that do not use the observation: the objective of a null run."""
        return Sum(tuple((w, term) for w, term in self.terms if not term.reads_signal))

    def __repr__(self) -> str:
        shown = [repr(term) if w == 1 else f"{w:g} * {term!r}" for w, term in self.terms]
        return " + ".join(shown) or "nothing"


@dataclass(frozen=True)
class PerRestart(Term):
    """weights[r] · term for restart r: several objectives in one batch. Restarts stay together, since their place says whose weight
    counts."""

    weights: tuple[float, ...]
    term: Term
    couples_restarts: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        values = self.term(at)
        weights = self.weights[: len(values)]  # of a single row, when its memory is measured
        by_restart = values.unflatten(0, (-1, len(weights)))
        return torch.stack([w * by_restart[:, r] for r, w in enumerate(weights)], 1).flatten()


def couples_restarts(objective: Term) -> bool:
    """Whether a summand with nonzero weight uses several restarts at once."""
    return any(weight and term.couples_restarts for weight, term in objective.parts())


def per_restart(values: Tensor) -> Tensor:
    """Mean over everything but the restarts, shape (R,)."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def norm_per_restart(values: Tensor) -> Tensor:
    """Euclidean norm over everything but the restarts, shape (R,); its derivative at zero is zero."""
    return root(values.flatten(1).square().sum(1))


def root(square: Tensor) -> Tensor:
    """Square root with derivative zero at zero; torch's is infinite and turns a whole update into NaN."""
    positive = square > 0
    return torch.where(
        positive, torch.where(positive, square, torch.ones_like(square)).sqrt(), torch.zeros_like(square)
    )
