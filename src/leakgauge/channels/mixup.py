"""MixUp: the gradient of mixtures of the samples."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from torch import Tensor

from leakgauge.channels.gradient import Gradient, gradient
from leakgauge.channels.targets import of_samples
from leakgauge.core import Channel, Defense, Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked


@example("mlp", share=0.7)
@example("cnn", share=0.7)
@checked
@dataclass(frozen=True)
class MixUp:
    """∂/∂θ [λ·loss(f(x̃), y) + (1 − λ)·loss(f(x̃), y')] with x̃ = λ·x + (1 − λ)·x', x' and y' the next sample of the batch; λ is ``share``.

    An adversary who does not know it finds the mixtures. One who does replays them and finds the samples, unless λ is ½, where both
    orders of a pair look the same. λ is a setting that clients agree on; drawn for each batch, it would be one more unknown number.

    Ref: Zhang et al. 2018, Eq. (1) — mixtures of inputs and of targets
    """

    share: float = 0.7

    def __post_init__(self) -> None:
        if not 0.5 <= self.share <= 1:
            raise BadInput(f"MixUp needs a share from 0.5 to 1 of the first sample, got {self.share}")

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        if not x.is_floating_point():
            raise Inapplicable("MixUp mixes images, and token ids cannot be mixed")
        if len(x) < 2:
            raise BadInput("MixUp mixes a sample with another; use a batch of at least 2")
        mixed = self.share * x + (1 - self.share) * x.roll(-1, 0)
        following = of_samples(y, [*range(1, len(x)), 0], samples=len(x))
        own, other = (
            gradient(victim, mixed, targets, parameters=victim.parameters(), buffers=victim.buffers())
            for targets in (y, following)
        )
        return {name: self.share * g + (1 - self.share) * other[name] for name, g in own.items()}

    def batch_sizes(self) -> range:
        """At least two samples."""
        return range(2, sys.maxsize)

    def unprotected(self) -> Gradient:
        """The gradient of the samples themselves."""
        return Gradient()

    def known(self, victim: Victim, sent: Signal, /) -> tuple[Channel, tuple[Defense, ...]]:
        """The mixing itself: nothing in it is secret."""
        return self, ()
