"""What no attack can exceed in a set-up, whatever it tries: a fact of the noise, computed without an attack.

A bound exists where what one sample (or the whole update) adds is clipped before Gaussian noise of a fixed size is added. Everything else
has none, and :class:`Unbounded` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch
from torch import Tensor

from leakgauge.channels import DPSGD, AllRounds
from leakgauge.core import AddsClients, AddsNoise, Channel, Defense, Observation, PerSample, Pixels, Victim, as_images
from leakgauge.defenses import Clip, FlowerLocalDP, GaussianNoise
from leakgauge.measures.first_layer import from_scratch_psnr
from leakgauge.measures.reidentification import merge_candidates, rounding_error
from leakgauge.measures.rero import GaussianSteps, membership_bound, reconstruction_bound

FALSE_POSITIVES = 0.01
"""Rate of false positives at which membership is bounded."""
EVEN_ODDS = 0.5
"""Prior of an attribute that is either or."""
VACUOUS = 0.99
"""A bound from here on rules nothing out and is said to."""


class Unbounded(StrEnum):
    """Why no bound exists, or why none is known."""

    NO_NOISE = "no_noise"
    NO_CLIPPING = "no_clipping"
    DATA_DEPENDENT = "data_dependent"
    NOT_GAUSSIAN = "not_gaussian"
    STATISTICS = "statistics"
    NEAR_COPY = "near_copy"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Bound:
    """The highest rates of success of any attack on one message with noise multiplier ``noise`` = σ.

    ``unit`` is what the noise hides: a single sample (DP-SGD), or all that one update holds (a clipped update with noise). An image that
    counts as reconstructed is re-identified among ``candidates`` images; if the private one is drawn evenly from these, guessing
    succeeds with ``prior`` and no attack with more than ``reconstruction``. Both are None where images were not re-identified, or where
    the adversary was given labels, which narrow the candidates. ``attribute`` is for a property with even odds, ``membership`` the rate
    of true positives at ``FALSE_POSITIVES``. ``scratch_psnr`` is what the best reading of a first layer reaches on these images without
    knowledge about images: an expectation, and no bound for an attack with a prior. None where several images share the clipping. The rates
    are those of ``rounds`` such messages about the same batch together.
    """

    noise: float
    unit: Literal["sample", "update"]
    attribute: float
    membership: float
    candidates: int | None = None
    prior: float | None = None
    reconstruction: float | None = None
    scratch_psnr: float | None = None
    rounds: int = 1

    @property
    def vacuous(self) -> bool:
        """It rules nothing out."""
        return (self.attribute if self.reconstruction is None else self.reconstruction) >= VACUOUS


@dataclass(frozen=True)
class Mechanism:
    """One Gaussian mechanism: what it hides, and its noise multiplier in units of the clipping norm."""

    noise: float
    unit: Literal["sample", "update"]

    @property
    def accounted(self) -> float:
        """The multiplier that an accountant takes. A sample is added or left out, which moves the sum by the norm; a whole update is
        replaced by another one, which may be twice as far away."""
        return self.noise if self.unit == "sample" else self.noise / 2


def mechanism(channel: Channel, defenses: Sequence[Defense]) -> Mechanism | Unbounded:
    """The mechanism that protects what is sent. What happens to it afterwards (pruning, rounding, sums over clients) changes nothing.

    >>> mechanism(DPSGD(clip=0.5, noise=2.0), ())
    Mechanism(noise=2.0, unit='sample')
    """
    own = channel.of if isinstance(channel, AddsClients) else channel
    if isinstance(own, DPSGD) and own.noise:
        return Mechanism(own.noise, "sample")
    defenses = [part for one in defenses for part in (one.parts if isinstance(one, FlowerLocalDP) else (one,))]
    noisy = [i for i, one in enumerate(defenses) if isinstance(one, AddsNoise)]
    if not noisy:
        return Unbounded.NO_NOISE
    first = noisy[0]
    noise, before = defenses[first], defenses[first - 1] if first else None
    if not isinstance(noise, GaussianNoise):
        return Unbounded.NOT_GAUSSIAN
    if noise.std is None:
        return Unbounded.NO_NOISE if not (noise.relative or noise.variance_to_norm) else Unbounded.DATA_DEPENDENT
    if not noise.std:
        return Unbounded.NO_NOISE
    if not isinstance(before, Clip) or before.norm == float("inf"):
        return Unbounded.NO_CLIPPING
    return Mechanism(noise.std / before.norm, "sample" if isinstance(channel, PerSample) else "update")


def bound_of(
    victim: Victim, seen: Observation, defenses: Sequence[Defense] | None, x: Tensor, *, pool: Tensor | None = None
) -> Bound | Unbounded:
    """The bound for an observation of ``x`` (model space), which ``defenses`` changed; they are None for an update of which that is not
    known. ``pool`` holds other images, in [0, 1].
    """
    found = mechanism(seen.channel, defenses or ())
    if isinstance(found, Unbounded):
        return Unbounded.UNKNOWN if defenses is None else found
    if seen.buffers is not None:
        return Unbounded.STATISTICS
    if seen.near is not None:
        return Unbounded.NEAR_COPY
    rounds = len(victim.model.rounds) if isinstance(victim.model, AllRounds) else 1
    steps = GaussianSteps(found.noise, steps=rounds)
    count = None if pool is None or seen.labels is not None else _candidates(as_images(victim.space, x).cpu(), pool)
    prior = None if count is None or len(x) >= count else len(x) / count
    return Bound(
        noise=found.noise,
        unit=found.unit,
        attribute=reconstruction_bound(steps, EVEN_ODDS),
        membership=membership_bound(steps, FALSE_POSITIVES),
        candidates=None if prior is None else count,
        prior=prior,
        reconstruction=None if prior is None else reconstruction_bound(steps, prior),
        scratch_psnr=_scratch(victim, x, found) if rounds == 1 and (found.unit == "sample" or len(x) == 1) else None,
        rounds=rounds,
    )


def _candidates(truths: Tensor, pool: Tensor) -> int:
    """Distinct images among which a reconstruction must be closest to its own. Any guess is closest to one of them, so a batch of B
    guesses names the right one with a probability of at most B / M."""
    return len(merge_candidates(truths.double(), pool.cpu().double(), apart=rounding_error(truths))[1])


def _scratch(victim: Victim, x: Tensor, found: Mechanism) -> float | None:
    """PSNR of the mean error, by the norm of each image as the model takes it."""
    space = victim.space
    if not isinstance(space, Pixels):
        return None
    scale = torch.tensor(space.std, dtype=torch.float64) / (space.bounds[1] - space.bounds[0])
    lengths = x.detach().cpu().double().flatten(1).norm(dim=1)[:, None]
    deviation = (found.noise * lengths * scale).expand(len(x), x.shape[1])
    if not bool((deviation > 0).all()):  # an image of zeros, which says nothing about its size
        return None
    return float(from_scratch_psnr(space.decode(x).cpu(), deviation).mean())
