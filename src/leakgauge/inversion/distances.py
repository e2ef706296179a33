"""Distances between a candidate's replayed signal and the observed one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from leakgauge.core import Victim
from leakgauge.engine import Replay
from leakgauge.errors import BadInput
from leakgauge.inversion.terms import Candidate, Term, root


class LayerWeights(Protocol):
    """Weight of each named tensor of the signal; names are in the model's order, input side first."""

    def __call__(self, names: Sequence[str], /) -> Mapping[str, float]: ...


@runtime_checkable
class WeightsByRole(LayerWeights, Protocol):
    """Weights that depend on the role of a tensor in the victim's model, which its name may not show."""

    def of(self, victim: Victim, names: Sequence[str], /) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Equal:
    """Every tensor counts the same."""

    def __call__(self, names: Sequence[str], /) -> Mapping[str, float]:
        return dict.fromkeys(names, 1.0)


@dataclass(frozen=True)
class Decaying:
    """w_l = exp(−rate · l / L): tensors near the input (small l) count more."""

    rate: float = 1.0

    def __call__(self, names: Sequence[str], /) -> Mapping[str, float]:
        return {name: math.exp(-self.rate * i / len(names)) for i, name in enumerate(names)}


@dataclass(frozen=True)
class ByName:
    """Weights given by name; other tensors do not count. Unknown names are refused."""

    weights: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, names: Sequence[str], /) -> Mapping[str, float]:
        unknown = sorted(set(self.weights) - set(names))
        if unknown:
            raise BadInput(f"the observed signal has no tensor {unknown[0]!r} to weight; it has {len(names)} others")
        return {name: self.weights[name] for name in names if self.weights.get(name)}


@dataclass(frozen=True)
class Cosine(Term):
    """1 − ⟨g, g*⟩ / (‖g‖·‖g*‖) over all shared tensors together; ignores the length of the gradient.

    Ref: Geiping et al. 2020, Eq. (4) — cosine distance of gradients
    """

    weights: LayerWeights = field(default_factory=Equal)
    reads_signal: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        replay, weights = _weighted(at, self.weights)
        lengths = root(replay.square(weights)) * root(replay.observed_square(weights))
        return 1 - replay.dot(weights) / lengths.clamp_min(_TINY)


@dataclass(frozen=True)
class BalancedCosine(Term):
    """1 − ⟨g, g*⟩_w / (‖g‖_w·‖g*‖_w) with w_l = ‖g*_l‖^(2·power − 2), so a tensor with a long gradient does not drown the others.

    At ``power`` 1 this is :class:`Cosine`; at 0 every tensor of the observation has the same length. The weights come from the
    observation of each row.
    """

    power: float = 0.5
    reads_signal: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        dots, own, seen = _by_tensor(at)
        weight = seen.clamp_min(_TINY) ** (self.power - 1)
        dot, one, other = ((weight * part).sum(0) for part in (dots, own, seen))
        return 1 - dot / (root(one) * root(other)).clamp_min(_TINY)


@dataclass(frozen=True)
class LayerCosine(Term):
    """The mean over all shared tensors of 1 − ⟨g_l, g*_l⟩ / (‖g_l‖·‖g*_l‖): each has a direction of its own, and its length is ignored."""

    reads_signal: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        dots, own, seen = _by_tensor(at)
        return (1 - dots / (root(own) * root(seen)).clamp_min(_TINY)).mean(0)


def _by_tensor(at: Candidate) -> tuple[Tensor, Tensor, Tensor]:
    """⟨g_l, g*_l⟩, ‖g_l‖² and ‖g*_l‖² of every tensor, each (tensors, R)."""
    replay = at.require_replay()
    each = [{name: 1.0} for name in replay.names]
    dots, own = (torch.stack([part(one) for one in each]) for part in (replay.dot, replay.square))
    return dots, own, torch.stack([replay.observed_square(one).expand(len(at.x)) for one in each])


@dataclass(frozen=True)
class L2(Term):
    """Σ_l w_l ‖g_l − g*_l‖².

    Ref: Zhu et al. 2019, Eq. (4) — squared distance of gradients
    """

    weights: LayerWeights = field(default_factory=Equal)
    reads_signal: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        replay, weights = _weighted(at, self.weights)
        return replay.l2(weights)


@dataclass(frozen=True)
class LayerNorms(Term):
    """Σ_l w_l ‖g_l − g*_l‖₂: the norm of each tensor's difference, not its square, so no large layer dominates.

    Ref: Yin et al. 2021, gradient matching loss — Euclidean distance of gradients, layer by layer
    """

    weights: LayerWeights = field(default_factory=Equal)
    reads_signal: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        replay, weights = _weighted(at, self.weights)
        return torch.stack([w * root(replay.l2({name: 1.0})) for name, w in weights.items()]).sum(0)


@dataclass(frozen=True)
class RelativeL2(Term):
    """Σ_l w_l ‖g_l − g*_l‖² / Σ_l w_l ‖g*_l‖²: the squared distance relative to the observation.

    The weight of a prior then means the same at every cut, whatever the size of the features.

    Ref: He et al. 2019, white-box attack — squared distance of features, here relative
    """

    weights: LayerWeights = field(default_factory=Equal)
    reads_signal: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        replay, weights = _weighted(at, self.weights)
        return replay.l2(weights) / replay.observed_square(weights).clamp_min(_TINY)


@dataclass(frozen=True)
class L1(Term):
    """Σ_l w_l ‖g_l − g*_l‖₁.

    Ref: Deng et al. 2021, section 3 — the absolute part of TAG's distance
    """

    weights: LayerWeights = field(default_factory=Equal)
    reads_signal: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        replay, weights = _weighted(at, self.weights)
        return replay.l1(weights)


_TINY = 1e-30  # a zero gradient has no direction: its cosine distance is 1, not NaN


def _weighted(at: Candidate, weights: LayerWeights) -> tuple[Replay, Mapping[str, float]]:
    replay = at.require_replay()
    if isinstance(weights, WeightsByRole):
        return replay, weights.of(at.victim, replay.names)
    return replay, weights(replay.names)
