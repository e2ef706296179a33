"""MixUp and InstaHide: the gradient of mixtures of the samples, plain or with secret signs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.channels.gradient import Gradient, gradient
from leakgauge.channels.targets import of_samples
from leakgauge.core import Channel, Defense, Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked


@checked
@dataclass(frozen=True)
class Mixtures:
    """∂/∂θ [λ·loss(f(x̃), y) + (1 − λ)·loss(f(x̃), y')] of samples x̃ that are mixed already.

    y' is the target of the next sample, λ is ``share``.

    Ref: Zhang et al. 2018, Eq. (1) — mixtures of inputs and of targets
    """

    share: float = 0.7

    def __post_init__(self) -> None:
        if not 0.5 <= self.share <= 1:
            raise BadInput(f"{type(self).__name__} needs a share from 0.5 to 1 of the first sample, got {self.share}")

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        following = of_samples(y, [*range(1, len(x)), 0], samples=len(x))
        own, other = (
            gradient(victim, x, targets, parameters=victim.parameters(), buffers=victim.buffers())
            for targets in (y, following)
        )
        return {name: self.share * g + (1 - self.share) * other[name] for name, g in own.items()}

    def mixed(self, x: Tensor) -> Tensor:
        """λ·x + (1 − λ)·x', x' the next sample of the batch."""
        if not x.is_floating_point():
            raise Inapplicable("images can be mixed, and token ids cannot")
        if len(x) < 2:
            raise BadInput("a sample is mixed with another; use a batch of at least 2")
        return self.share * x + (1 - self.share) * x.roll(-1, 0)

    def batch_sizes(self) -> range:
        """At least two samples."""
        return range(2, sys.maxsize)


@example("mlp", share=0.7)
@example("cnn", share=0.7)
@checked
@dataclass(frozen=True)
class MixUp(Mixtures):
    """The gradient of the mixtures x̃ = λ·x + (1 − λ)·x' (:class:`Mixtures`), x' the next sample of the batch.

    An adversary who does not know it finds the mixtures. One who does replays them and finds the samples, unless λ is ½, where both
    orders of a pair look the same. λ is a setting that clients agree on; drawn for each batch, it would be one more unknown number.
    """

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        return super().__call__(victim, self.mixed(x), y)

    def unprotected(self) -> Gradient:
        """The gradient of the samples themselves."""
        return Gradient()

    def known(self, victim: Victim, sent: Signal, /) -> tuple[Channel, tuple[Defense, ...]]:
        """The mixing itself: nothing in it is secret."""
        return self, ()


@example("mlp", share=0.65)
@example("cnn", share=0.65)
@checked
@dataclass(frozen=True)
class InstaHide(MixUp):
    """:class:`MixUp` with a random sign for every value of every mixture: x̃ = σ ∘ (λ·x + (1 − λ)·x'), in the model's units.

    σ comes from ``seed``, which only the client knows. An adversary who knows the defense finds x̃ as it would find images, and drops the
    signs: |x̃| = |λ·x + (1 − λ)·x'|. What is left is to guess which mixtures were negative (:mod:`leakgauge.inversion.encoded`).

    Deviations: two samples of the batch are mixed, with one λ that is agreed on; the paper draws λ, at most 0.65, and may mix in public
    images.

    Ref: Huang et al. 2020, InstaHide — mixtures with random signs
    Ref: Carlini et al. 2021, private learning by instance encoding — the absolute value undoes the signs
    """

    share: float = 0.65
    seed: int | None = 0

    def mixed(self, x: Tensor) -> Tensor:
        found = super().mixed(x)
        if self.seed is None:
            return found
        rng = torch.Generator().manual_seed(self.seed)
        return found * (2 * torch.randint(0, 2, found.shape, generator=rng) - 1).to(found)

    def reseed(self, number: int, /) -> InstaHide:
        """The same with its own signs."""
        return self if self.seed is None else replace(self, seed=self.seed + number)

    def simulated(self, number: int, /) -> InstaHide:
        """The channel with signs that an adversary draws itself."""
        return replace(self, seed=number)

    def known(self, victim: Victim, sent: Signal, /) -> tuple[Channel, tuple[Defense, ...]]:
        """The mixing, without the signs."""
        return replace(self, seed=None), ()

    def encodings(self) -> Mixtures:
        """The channel of the encoded samples x̃."""
        return Mixtures(self.share)

    def weights(self, samples: int) -> Tensor:
        """M of x̃ = σ ∘ (M·x), (samples, samples)."""
        same = torch.eye(samples, dtype=torch.float64)
        return self.share * same + (1 - self.share) * same.roll(1, 1)
