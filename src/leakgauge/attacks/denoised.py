"""Any attack, with its result cleaned by a diffusion prior of the adversary."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.diffusion import Learning
from leakgauge.core import Assumption, Attack, Blindable, Observation, Reconstruction, Use, Victim, uses
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.inversion.sampling import from_space, levels, share_of_image, to_space
from leakgauge.priors.diffusion import denoise, gallery

STEPS = 20
"""Steps of the sampler from the estimated noise down to none."""


@dataclass(frozen=True)
class Denoised:
    """The attack made by :func:`denoised`."""

    attack: Attack
    learning: Learning
    deviation: float | None = None

    def __post_init__(self) -> None:
        if self.deviation is not None and not self.deviation >= 0:
            raise BadInput(f"the deviation of the noise must not be negative, got {self.deviation!r}")

    def uses(self) -> frozenset[Use]:
        learned: frozenset[Use] = frozenset() if self.learning.source else frozenset({"learned_prior"})
        return uses(self.attack) | learned

    def assumptions(self) -> tuple[Assumption, ...]:
        return self.learning.assumptions()

    def blind(self) -> Attack:
        """The null run of the attack itself: cleaning adds nothing where nothing was found."""
        return self.attack.blind() if isinstance(self.attack, Blindable) else self.attack

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        prior = self.learning(victim, seen, seed=seed)
        found = self.attack(victim, seen, seed=seed)
        x = from_space(found.x, victim.space)
        sigma = noise_deviation(x) if self.deviation is None else x.new_full((len(x),), self.deviation)
        level = sigma / (1 + sigma.square()).sqrt()
        labels = found.y if isinstance(found.y, Tensor) and found.y.dim() == 1 else None
        cleaned = [
            denoise(
                prior,
                share_of_image(a) * one[None],
                path=levels(STEPS, start=float(a)),
                labels=None if labels is None else labels[i : i + 1],
            )[0]
            if a > 0
            else one
            for i, (one, a) in enumerate(zip(x, level, strict=True))
        ]
        clean = to_space(torch.stack(cleaned), victim.space, found.x.dtype)
        said = f"cleaned by the prior from noise of deviation {float(sigma.mean()) / 2:.3f} of the range of pixels"
        return replace(
            found,
            x=clean,
            candidates=torch.cat([found.candidates, clean[None]]),
            losses=torch.cat([found.losses, found.losses.min()[None]]),
            made_by=repr(self),
            notes=(str(prior), said, *found.notes),
            learned=prior.learned(),
            gallery=gallery(prior),
        )


def noise_deviation(images: Tensor) -> Tensor:
    """Standard deviation of white noise in each image (N, C, H, W), from the finest diagonal differences:

        σ = median |(x₀₀ − x₀₁ − x₁₀ + x₁₁) / 2| / 0.6745

    over all 2 × 2 blocks. Edges of the image itself are rare among these, so the median hardly sees them.

    Ref: Donoho and Johnstone 1994, section 4.1.1 — noise level by the median absolute deviation
    """
    a, b = images[..., 0::2, 0::2], images[..., 0::2, 1::2]
    c, d = images[..., 1::2, 0::2], images[..., 1::2, 1::2]
    high, wide = min(one.shape[-2] for one in (a, c)), min(one.shape[-1] for one in (a, b))
    a, b, c, d = (one[..., :high, :wide] for one in (a, b, c, d))
    diagonal = a - b - c + d
    return (diagonal.abs() / 2).flatten(1).median(1).values / 0.6745


@checked
def denoised(
    attack: Attack, *, prior: str = "", deviation: float | None = None, width: int = 32, training: int = 1000
) -> Denoised:
    """``attack``, its result read as a noisy image and cleaned by a diffusion prior at the noise level that fits.

        x̂ = image + σε,    a = σ / √(1 + σ²),    result = the sampler from √(1 − a²)·x̂ at level a down to 0

    Noise that a client adds for privacy survives in what a closed form or a malicious layer reads off, as white noise in the image. σ is
    measured on each image (:func:`noise_deviation`) or given as ``deviation``, of images scaled to [−1, 1]. ``prior``, ``width`` and
    ``training`` are as in :func:`diffusion`.

    Deviations: Schwethelm et al. compute σ from the parameters of the mechanism, here it is measured on the image.

    Ref: Schwethelm et al. 2024, section 4 — reconstruction under differential privacy, denoised by a diffusion model
    """
    return Denoised(attack, Learning(prior, width, training), deviation)
