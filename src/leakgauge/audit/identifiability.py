"""Which directions of the private images an observation determines near the truth. It explains a verdict and never makes one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from leakgauge.channels import DPSGD
from leakgauge.channels.facts import public
from leakgauge.core import AddsClients, AddsNoise, Channel, Defense, Pixels, Signal, Targets, Victim, apply_defenses
from leakgauge.core.randomness import private_randomness
from leakgauge.defenses import Clip, Prune, Withhold
from leakgauge.errors import Inapplicable
from leakgauge.measures.spectrum import DEPTH, MOST_PRODUCTS, PROBES, Sketch, Spectrum, sketch_spectrum, spectrum

MOST_DIRECTIONS = 4096
"""Values of the private images together, for which the derivative is taken one by one. Of more, random products see a sample."""
MOST_SKETCHED = 2**34
"""Products that a sketch may take where directions are asked for: up to an hour of one core for the largest models."""
CHEAP = 2**24
"""Products that are spent on explaining a negative without being asked. One core takes about two seconds for them, and for a single image
of 32 × 32 × 3 two more for its directions, or fifteen where what is shared determines more than a third of them."""


@dataclass(frozen=True)
class Identifiable:
    """What was shared determines ``above`` of the ``directions`` of the private images, at noise of deviation ``noise`` on each number:
    that of a ``defense``, or the ``rounding`` of its numbers. ``psnr`` is the Cramér-Rao limit for these images, a pixel's range being
    the only prior. ``largest`` and ``smallest`` are singular values of the derivative, per unit of a pixel's range. Where random products
    stand for all of them, ``error`` is the standard error of ``above``, and ``smallest`` is not known (0).
    """

    directions: int
    above: int
    noise: float
    source: Literal["rounding", "defense"]
    psnr: float
    largest: float
    smallest: float
    error: float = 0.0


def identify(
    victim: Victim,
    channel: Channel,
    x: Tensor,
    y: Targets,
    *,
    defenses: Sequence[Defense] = (),
    seed: int = 0,
    most: int = MOST_PRODUCTS,
) -> tuple[Identifiable, Tensor, Tensor | None]:
    """The facts, what is left of ``x`` (model space) without the lost directions, and for each pixel the share that is lost.

    Both are images in [0, 1]. The derivative is that of the channel at the truth, in float64, with dropout masks fixed. Of defenses, noise
    counts as noise, what is withheld or pruned does not count, and clipping scales; others are refused. More values than
    ``MOST_DIRECTIONS``, or more than ``most`` products of values and shared numbers, are estimated from random products, without the
    share of each pixel, unless these are too many too or do not resolve directions at this noise.
    """
    if not isinstance(victim.space, Pixels):
        raise Inapplicable("directions are measured for images")
    for one in defenses:
        if not isinstance(one, AddsNoise | Clip | Prune | Withhold):
            raise Inapplicable(f"what {one!r} leaves of a direction is not computed: it has no useful derivative")
    rounding = torch.finfo(victim.dtype).eps
    exact = replace(victim, model=copy.deepcopy(victim.model).double())
    known, plain = public(channel), [one for one in defenses if not isinstance(one, AddsNoise)]
    images, space = victim.space.decode(x).double(), victim.space
    low, high = space.bounds

    def sent(pixels: Tensor) -> Signal:
        with private_randomness(seed, exact.device):
            return known(exact, space.encode(low + (high - low) * pixels), y)

    kept = apply_defenses(exact, known, _detached(sent(images)), plain, rng=torch.Generator().manual_seed(seed))
    size = sum(value.numel() for value in kept.values())
    exactly = x.numel() <= MOST_DIRECTIONS and size * x.numel() <= most
    allowed = MOST_SKETCHED if most == MOST_PRODUCTS else most
    if not exactly and 2 * PROBES * DEPTH * size > allowed:
        raise Inapplicable(
            f"{x.numel()} values by {size} shared numbers are too many to measure, and {2 * PROBES * DEPTH * size} random products "
            f"too (at most {allowed})"
        )
    whole, whole_kept = (_norm(one) for one in (_detached(sent(images)), kept))
    factor = whole_kept / whole if any(isinstance(one, Clip) for one in plain) and whole else 1.0
    masks = {name: (value != 0).double() * factor for name, value in kept.items()}

    def flat(pixels: Tensor) -> Tensor:
        signal = sent(pixels)
        return torch.cat([(signal[name] * mask).flatten() for name, mask in masks.items()])

    found = spectrum(flat, images) if exactly else sketch_spectrum(flat, images, seed=seed)
    added = _noise(known, defenses, kept, len(x))
    noise = max(added, rounding * found.scale)
    if isinstance(found, Sketch) and noise > 0 and not found.settled(noise):
        raise Inapplicable(
            f"{PROBES * DEPTH} random products do not resolve the weakest of {x.numel()} directions at this noise"
        )
    facts = Identifiable(
        directions=x.numel(),
        above=found.above(noise),
        noise=noise,
        source="defense" if added >= rounding * found.scale else "rounding",
        psnr=found.psnr(noise) if noise > 0 else 0.0,
        largest=found.largest,
        smallest=0.0 if isinstance(found, Sketch) else float(found.values[-1]),
        error=found.error(noise) if isinstance(found, Sketch) else 0.0,
    )
    return facts, *_pictures(found, images, noise)


def _pictures(found: Spectrum | Sketch, images: Tensor, noise: float) -> tuple[Tensor, Tensor | None]:
    grey = torch.full_like(images, 0.5)
    left = (grey + found.kept((images - grey).flatten(), noise).view_as(images)).clamp(0, 1)
    if isinstance(found, Sketch):
        return left, None
    return left, found.lost(noise).view_as(images).clamp(0, 1)


def _noise(channel: Channel, defenses: Sequence[Defense], signal: Signal, samples: int) -> float:
    """Deviation of all noise on one number together."""
    own = channel.of if isinstance(channel, AddsClients) else channel
    parts = [own.noise * own.clip / samples] if isinstance(own, DPSGD) else []
    parts += [one.deviation(signal) for one in defenses if isinstance(one, AddsNoise)]
    return sum(part**2 for part in parts) ** 0.5


def _detached(signal: Signal) -> Signal:
    return {name: value.detach() for name, value in signal.items()}


def _norm(signal: Signal) -> float:
    return sum(float(value.square().sum()) for value in signal.values()) ** 0.5
