"""The gradient of differentially private training: clip each sample's gradient, sum, add noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.channels.gradient import Gradient, each_gradient
from leakgauge.channels.rows import clip_rows
from leakgauge.core import Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked


@example(clip=0.5, noise=0.3)
@checked
@dataclass(frozen=True)
class DPSGD:
    """g̃ = 1/B · (Σ_i g_i · min(1, C / ‖g_i‖) + σC · N(0, I)), with g_i the gradient of sample i of B.

    C is ``clip``, σ is ``noise`` (the noise multiplier). The noise comes from ``seed``, which only the client knows: an
    observation holds the channel with seed None and no noise, so an adversary who replays it matches the mean. Memory: the
    gradients of all samples at once, B times the size of the model.

    Batch normalisation in train mode mixes samples, so no gradient of one sample exists. Such a victim is refused.

    Ref: Abadi et al. 2016, Algorithm 1 — one step of differentially private SGD, without the sampling of the lot
    """

    clip: float = 1.0
    noise: float = 1.0
    seed: int | None = 0

    def __post_init__(self) -> None:
        if not self.clip > 0:
            raise BadInput(f"DPSGD needs a positive clip, got {self.clip}")
        if not 0 <= self.noise < math.inf:
            raise BadInput(f"DPSGD needs a noise multiplier of at least 0, got {self.noise}")
        if self.noise and math.isinf(self.clip):
            raise BadInput("DPSGD scales its noise by clip, which is infinite here; set a finite clip, or noise 0")

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        require_separate_samples(victim)
        each = each_gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())
        return self.release(each, None if self.seed is None else torch.Generator().manual_seed(self.seed))

    def release(self, each: Signal, rng: torch.Generator | None) -> dict[str, Tensor]:
        """g̃ from the gradients of the samples, (B, *shape), with noise from ``rng``, or without noise if that is None."""
        sent: dict[str, Tensor] = {}
        sigma = self.noise * self.clip
        for name, rows in clip_rows(each, self.clip).items():
            total = rows.sum(0)
            if self.noise and rng is not None:
                total = total + sigma * torch.randn(total.shape, generator=rng).to(total)
            sent[name] = total / len(rows)
        return sent

    def public(self) -> DPSGD:
        """The channel as the server knows it: without the client's noise."""
        return replace(self, seed=None)

    def simulated(self, number: int, /) -> DPSGD:
        """The channel with noise that an adversary draws itself."""
        return replace(self, seed=number)

    def reseed(self, number: int, /) -> DPSGD:
        """The same with its own noise."""
        return self if self.seed is None else replace(self, seed=self.seed + number)

    def unprotected(self) -> Gradient:
        """The gradient without clipping and noise."""
        return Gradient()


def require_separate_samples(victim: Victim) -> None:
    """Refuse a victim with a layer that mixes samples, and name the layer."""
    for name, module in victim.model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
            raise Inapplicable(
                f"DPSGD needs the gradient of each sample, but {name} normalises over the batch; "
                "use eval mode or group normalisation"
            )
