"""The critic: how likely is it that a gradient came from a batch? Learned from earlier pairs, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.measures.ridge import KernelRidge, Spectrum

COMPONENTS = 16
"""Principal components of the batch features that a critic predicts."""
PREDICTABLE = 0.98
"""A component is left out of the score if at most 2 % of it can be predicted."""


@dataclass(frozen=True, eq=False)
class GradientRows:
    """Turns gradient sketches (steps, layers, width) into rows: unit length per layer, minus the mean, unit spread."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, sketches: Tensor) -> GradientRows:
        unit = _unit(sketches)
        mean = unit.mean(0)
        scale = (unit - mean).square().sum(-1).mean(0).sqrt().clamp_min(1e-9)
        return cls(mean, scale[:, None])

    def __call__(self, sketches: Tensor) -> Tensor:
        """(layers, steps, width)."""
        return ((_unit(sketches) - self.mean) / self.scale).transpose(0, 1)


@dataclass(frozen=True, eq=False)
class BatchTargets:
    """Turns batch features (steps, f) into targets: the leading principal components, each with unit variance."""

    mean: Tensor
    turn: Tensor

    @classmethod
    def of(cls, features: Tensor) -> BatchTargets:
        mean = features.mean(0)
        centred = features - mean
        count = len(features)
        wide = centred.double()  # as for kernels: low rank is common here
        values, vectors = torch.linalg.eigh(wide.T @ wide / max(count - 1, 1))
        keep = min(COMPONENTS, max(count // 2, 1), len(values))
        values, vectors = values[-keep:], vectors[:, -keep:]
        usable = values > 1e-9 * values[-1].clamp_min(1e-30)
        return cls(mean, torch.where(usable, vectors / values.clamp_min(1e-30).sqrt(), 0.0).to(features))

    def __call__(self, features: Tensor) -> Tensor:
        return (features - self.mean) @ self.turn


@dataclass(frozen=True, eq=False)
class Critic:
    """Scores candidates by ln p(z|g) - ln p(z), with both densities Gaussian and z the targets of a batch.

    s(g, z) = Σ_t [ -(z_t - ẑ_t(g))²/(2 v_t) + z_t²/2 ], where ẑ is kernel ridge regression of z on the gradient rows and v its
    leave-one-out error; unpredictable targets are left out. For jointly Gaussian pairs this is the optimal critic. There is one
    critic on the mean of the layers' kernels (component 0), one per layer, and last one fitted to shuffled pairs as a control.

    ``fitted`` holds them as one batch of (2 + layers) regressions.
    """

    rows: GradientRows
    features: BatchTargets
    known: Tensor  # (layers, N, width): rows of the training pairs
    fitted: KernelRidge

    @classmethod
    def of(cls, sketches: Tensor, features: Tensor, shuffle: Tensor) -> Critic:
        """Trained on ``sketches`` (N, layers, width) and ``features`` (N, f); ``shuffle`` is a permutation of N."""
        rows, targets = GradientRows.of(sketches), BatchTargets.of(features)
        known, z = rows(sketches), targets(features)
        kernels = known @ known.mT
        spectrum = Spectrum.of(torch.cat([kernels.mean(0, keepdim=True), kernels]))
        paired, control = spectrum.fit(z), spectrum[:1].fit(z[shuffle])
        dual, spread = torch.cat([paired.dual, control.dual]), torch.cat([paired.spread, control.spread])
        return cls(rows, targets, known, KernelRidge(dual, spread))

    def scores(self, sketches: Tensor, features: Tensor) -> Tensor:
        """(2 + layers, steps, candidates) for ``sketches`` (steps, …) against ``features`` (candidates, f)."""
        return self._scores(_components(self.rows(sketches) @ self.known.mT), features, self.fitted)

    def joint_scores(self, sketches: Tensor, features: Tensor) -> Tensor:
        """Only component 0 of :meth:`scores`, shape (1, steps, candidates)."""
        kernel = (self.rows(sketches) @ self.known.mT).mean(0, keepdim=True)
        return self._scores(kernel, features, KernelRidge(self.fitted.dual[:1], self.fitted.spread[:1]))

    def _scores(self, kernels: Tensor, features: Tensor, fitted: KernelRidge) -> Tensor:
        predicted = fitted(kernels)  # (components, steps, t)
        z = self.features(features)
        spread = fitted.spread
        use = (spread < PREDICTABLE).to(spread)
        precision = use / spread  # (components, t)
        # -(z-ẑ)²/2v + z²/2 expanded, to avoid tensors of size steps × candidates × targets
        own = 0.5 * ((use - precision) @ z.square().T)[:, None]
        cross = (predicted * precision[:, None]) @ z.T
        level = 0.5 * (predicted.square() * precision[:, None]).sum(-1, keepdim=True)
        return own + cross - level


def _unit(sketches: Tensor) -> Tensor:
    return sketches / sketches.norm(dim=-1, keepdim=True).clamp_min(1e-30)


def _components(kernels: Tensor) -> Tensor:
    """(layers, a, b) to (2 + layers, a, b): the mean of all layers, the layers, and the mean again for the control."""
    together = kernels.mean(0, keepdim=True)
    return torch.cat([together, kernels, together])
