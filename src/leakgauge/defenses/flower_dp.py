"""Flower's local differential privacy: clip the whole update, then add Gaussian noise by the classic formula."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.core import Signal
from leakgauge.core.examples import example
from leakgauge.defenses.clip import Clip
from leakgauge.defenses.noise import GaussianNoise
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked


@example(clipping_norm=0.1, sensitivity=0.1, neutral={"clipping_norm": 1e30, "sensitivity": 0.0})
@checked
@dataclass(frozen=True)
class FlowerLocalDP:
    """clip(g, C) + N(0, σ²) with σ = sensitivity · √(2 ln(1.25/δ)) / ε: ``LocalDpMod`` of Flower, whose arguments these are.

    The platform has no defaults; these are ours: two clipped updates are at most 2·C apart. The formula is proven for ε ≤ 1 only:
    :meth:`doubts`. Flower's central privacy has no noise on the client, whose mods clip: ``clip:NORM`` is all that a server sees of it.

    Ref: Dwork and Roth 2014, Theorem A.1 — σ of the Gaussian mechanism for ε < 1
    """

    clipping_norm: float = 1.0
    sensitivity: float = 2.0
    epsilon: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if not self.clipping_norm > 0 or self.sensitivity < 0 or not self.epsilon > 0 or not 0 < self.delta < 1:
            raise BadInput(
                "FlowerLocalDP needs a positive clipping_norm and epsilon, a sensitivity of at least 0 and a delta between 0 and 1; "
                f"got {self}"
            )

    @property
    def std(self) -> float:
        """σ of the noise."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    def parts(self) -> tuple[Clip, GaussianNoise]:
        """The two steps."""
        return Clip(self.clipping_norm), GaussianNoise(std=self.std)

    def deviation(self, signal: Signal, /) -> float:
        return self.std

    def doubts(self, signal: Signal, /) -> tuple[str, ...]:
        """Why the mod does less than its options say."""
        said: list[str] = []
        if self.epsilon > 1:
            said.append(
                f"the formula of Flower's noise is proven for ε up to 1 only, so ε = {self.epsilon:g} is no guarantee"
            )
        if self.sensitivity < 2 * self.clipping_norm:
            said.append(
                f"two updates of length {self.clipping_norm:g} may be {2 * self.clipping_norm:g} apart, and the noise is for a "
                f"sensitivity of {self.sensitivity:g}"
            )
        return tuple(said)

    def __call__(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        clip, noise = self.parts
        return noise(clip(signal, rng=rng), rng=rng)

    def by_row(self, signal: Signal, /, *, rng: torch.Generator) -> Signal:
        """The same for each row."""
        clip, noise = self.parts
        return noise.by_row(clip.by_row(signal, rng=rng), rng=rng)

    def replayed(self, plain: Signal, /) -> Signal:
        """``plain``, clipped."""
        return Clip(self.clipping_norm).replayed(plain)

    def nearest(self, plain: Signal, sent: Signal, /) -> Signal:
        """As :meth:`Clip.nearest`."""
        return Clip(self.clipping_norm).nearest(plain, sent)
