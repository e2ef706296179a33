"""Samples that a client encodes with secret signs: the search finds the encodings, and the signs are guessed afterwards."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.core import Attack, Encodes, Observation, Pixels, Reconstruction, Victim
from leakgauge.errors import Inapplicable

HEATS, HOT, COLD = 60, 2.0, 0.02
"""Rounds of the guess, and the variance τ that it allows for at first and in the end, in units of the mean variance of a pixel. Chosen on
images 20 to 39 of the embedded data, as was ``SLACK``."""
SLACK = 0.05
"""By how much an encoding may exceed the range of images, as a share of it, before that decides its sign."""


def through_encodings(attack: Attack, victim: Victim, seen: Observation, *, seed: int) -> Reconstruction:
    """What ``attack`` finds if it looks for the encodings, decoded. Smoothness is no property of encodings: ``attack`` has no priors."""
    channel, space = seen.channel, victim.space
    if not isinstance(channel, Encodes):
        raise Inapplicable(f"{channel!r} encodes nothing")
    if not isinstance(space, Pixels):
        raise Inapplicable("encodings are undone for images only")
    low, high = (space.encode(torch.full((1, *space.shape), b)).double().flatten(1) for b in space.bounds)
    reach = max(space.std) * float(torch.cat([low, high]).abs().max())
    wide = replace(space, bounds=(min(space.mean) - reach, max(space.mean) + reach))
    found = attack(replace(victim, space=wide), replace(seen, channel=channel.encodings()), seed=seed)
    size, public = found.x.abs().flatten(1).double(), seen.auxiliary
    if public is not None:  # images that are all the same have no variance to guess by
        public = public.flatten(1).to(size) if bool((public != public[:1]).any()) else None
    mixing = channel.weights(len(size)).to(size.device)
    signs = guess_signs(size, mixing, low.to(size), high.to(size), public)
    x = space.project((torch.linalg.pinv(mixing) @ (signs * size)).view_as(found.x).to(found.x))
    by = "their range" if public is None else "public images"
    note = f"found the encoded images, and guessed the signs of the mixtures by {by}"
    return replace(found, x=x, candidates=x[None], losses=torch.tensor([found.loss]), notes=(*found.notes, note))


def guess_signs(size: Tensor, mixing: Tensor, low: Tensor, high: Tensor, public: Tensor | None) -> Tensor:
    """The signs t of the mixtures M·x, from their absolute values a = ``size`` (n, values), for images x between ``low`` and ``high``.

    Without ``public`` images (N, values) only the range says something: where −a is below it the mixture is positive. All others are taken
    as positive too, so dark parts may come out bright. With them, if they differ, x ~ N(μ, Σ), and the two steps

        E[t] = tanh(a · M·x / τ)        E[x] = μ + (Mᵀ ⊗ Σ)·(M·Mᵀ ⊗ Σ + τ·I)⁻¹ (t·a − M·μ)

    are repeated while τ falls: expectation and maximisation for a = |M·x| up to noise of variance τ.

    Ref: Carlini et al. 2021, private learning by instance encoding — the absolute value undoes the signs
    """
    slack = SLACK * (high - low)
    forced = (size > slack - low).to(size) - (size > high + slack).to(size)
    if public is None:
        return torch.where(forced < 0, -1.0, 1.0).to(size)
    mean, spread = public.mean(0), public - public.mean(0)
    _, lengths, axes = torch.linalg.svd(spread, full_matrices=False)
    variances = lengths.square() / max(1, len(public) - 1)
    ranks, turn = torch.linalg.eigh(mixing @ mixing.T)
    typical = float(variances.sum()) / len(mean)
    x = mean.expand_as(size)
    signs = torch.zeros_like(size)
    for number in range(HEATS):
        tau = typical * HOT * (COLD / HOT) ** (number / (HEATS - 1))
        signs = torch.where(forced != 0, forced, torch.tanh(size * (mixing @ x) / tau))
        left = turn.T @ (signs * size - mixing @ mean.expand_as(size)) @ axes.T
        solved = left * variances / (ranks[:, None] * variances + tau)
        x = mean + mixing.T @ turn @ solved @ axes
    return torch.where(signs >= 0, 1.0, -1.0).to(size)
