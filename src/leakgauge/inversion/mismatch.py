"""How well a candidate explains an observation, in one number that is comparable between attacks with different objectives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.channels.dropout import without_dropout
from leakgauge.core import Observation, PerSample, Signal, Targets, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.core.spaces import Space
from leakgauge.inversion.defended import explained_direction, only_shown, useful
from leakgauge.inversion.priors import TotalVariation
from leakgauge.inversion.terms import Candidate

SWAPS = 64
"""Replays that may be spent on giving labels to the images of a batch."""


def layer_mismatch(
    victim: Victim, seen: Observation, x: Tensor, y: Targets, *, seed: int = 0, masks: int | None = None
) -> float:
    """Mean over the shared tensors of 1 − cos between the replayed tensor and the observed one: 0 explains everything.

        1 − cos(g, g*) = ½ ‖g / ‖g‖ − g* / ‖g*‖‖²

    where g* is what was sent, or, if the adversary knows the defenses, the signal nearest to g that explains it. In float64,
    since the left side cancels where it matters. Every tensor counts the same: over all of them together the head would
    decide alone, and in a network of sigmoids its gradient fits long before the image does. A tensor that was sent as zeros is left out.
    The adversary computes this; nothing here knows the truth. Dropout is off, because the client's masks are unknown, unless ``masks`` is
    the seed that they are drawn from.
    """
    with torch.no_grad():
        return float(_mismatch(victim, seen, x, y, seed=seed, masks=masks))


def _mismatch(
    victim: Victim, seen: Observation, x: Tensor, y: Targets, *, seed: int = 0, masks: int | None = None
) -> Tensor:
    steady = without_dropout(victim) if victim.mode == "train" and masks is None else victim
    with private_randomness(seed if masks is None else masks, victim.device):
        signal = seen.channel(steady, x, y)
    signal = only_shown(useful(seen.defenses), {name: signal[name] for name in seen.signal}, seen.signal)
    targets = _targets(seen, signal)
    found = [
        _apart(signal[name].double().flatten(), targets[name].to(signal[name].device).double().flatten())
        for name, sent in seen.signal.items()
        if bool(sent.any())
    ]
    return torch.stack(found).mean() if found else x.new_ones((), dtype=torch.float64)


def _targets(seen: Observation, signal: Signal) -> Signal:
    """What was sent, or what an adversary who knows the defenses compares ``signal`` with."""
    defenses = useful(seen.defenses)
    if not defenses:
        return seen.signal
    plain = {name: signal[name].detach() for name in seen.signal}
    sent = {name: target.to(plain[name]) for name, target in seen.signal.items()}
    if isinstance(seen.channel, PerSample):
        return explained_direction(defenses, plain, sent, by_support=True)
    rows = ({n: t[None] for n, t in one.items()} for one in (plain, sent))
    each = explained_direction(defenses, *rows, by_support=True)
    return {name: t[0] for name, t in each.items()}


def _apart(own: Tensor, target: Tensor) -> Tensor:
    length = own.norm()
    if not bool(length > 0) or not bool(target.any()):
        return own.new_ones(())
    return 0.5 * (own / length - target / target.norm()).square().sum()


def outside(space: Space, x: Tensor) -> Tensor:
    """By how much each pixel is outside of its bounds, as a share of the range."""
    with torch.no_grad():
        inside = space.project(x)
        width = space.encode(torch.ones_like(x)) - space.encode(torch.zeros_like(x))
    return (x - inside) / width


OUTSIDE = 0.01
"""Share of the range by which pixels of an image may be outside of it."""
ROUND, MOST_REPLAYS = 20, 200
"""Replays after which a continued search must have halved the mismatch to go on, and the most it may take."""


def continue_from(
    victim: Victim, seen: Observation, x: Tensor, y: Targets, *, goal: float, seed: int = 0
) -> tuple[Tensor, float]:
    """The image that L-BFGS on :func:`layer_mismatch` comes to from ``x``, and its mismatch.

    It ends at a mismatch of ``goal``, or when ``ROUND`` more replays do not halve it. No prior takes part.
    """
    descent = _Downhill(victim, seen, x, y, seed=seed)
    for _ in range(MOST_REPLAYS // ROUND):
        before = descent.least
        descent(ROUND)
        if descent.least <= goal or not descent.least < 0.5 * before:
            break
    return descent.best, descent.least


SETTLING = 60
"""Replays of a search that settles: beside noise a mismatch never halves, so a number must do."""


def settle_from(
    victim: Victim, seen: Observation, x: Tensor, y: Targets, *, smoothness: float, seed: int = 0
) -> tuple[Tensor, float]:
    """The image that L-BFGS on mismatch + ``smoothness`` · total variation comes to from ``x`` in ``SETTLING`` replays, and that sum."""
    descent = _Downhill(victim, seen, x, y, seed=seed, smoothness=smoothness)
    descent(SETTLING)
    return descent.best, descent.least


class _Downhill:
    """L-BFGS on :func:`layer_mismatch` plus the mean square by which pixels are outside of their bounds.

    With a weight ``smoothness`` of total variation, pixels that leave their bounds count as if they were at them, since a prior keeps many
    there. ``best`` is the image of the ``least`` sum without the bounds; what is outside by more than ``OUTSIDE`` is no image.
    """

    def __init__(
        self, victim: Victim, seen: Observation, x: Tensor, y: Targets, *, seed: int, smoothness: float | None = None
    ) -> None:
        self.victim, self.seen, self.x, self.y, self.seed, self.smoothness = victim, seen, x, y, seed, smoothness
        self.moved = x.detach().double().requires_grad_()  # of which the model sees what its own type holds
        self.best, self.least = x.detach().clone(), math.inf

    def __call__(self, replays: int) -> None:
        torch.optim.LBFGS(
            [self.moved],
            max_iter=replays,
            max_eval=replays,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        ).step(self._closure)

    def _closure(self) -> Tensor:
        raw = self.moved.to(self.x)
        beyond = outside(self.victim.space, raw)
        image = raw if self.smoothness is None else self.victim.space.project(raw)
        value = _mismatch(self.victim, self.seen, image, self.y, seed=self.seed)
        if self.smoothness is not None:
            value = value + self.smoothness * TotalVariation()(Candidate(image[None], self.victim, None, 1)).double()[0]
        total = value + beyond.square().mean().double()
        (self.moved.grad,) = torch.autograd.grad(total, self.moved)
        if float(value.detach()) < self.least and bool(outside(self.victim.space, image).abs().max() <= OUTSIDE):
            self.best, self.least = image.detach().clone(), float(value.detach())
        return total.detach()


def label_images(victim: Victim, seen: Observation, x: Tensor, labels: Tensor, *, seed: int = 0) -> Tensor:
    """``labels`` in the order in which they explain the observation best, for images that were found without them.

    Two labels are exchanged as long as that helps, within ``SWAPS`` replays.
    """
    best, left = layer_mismatch(victim, seen, x, labels, seed=seed), SWAPS
    moved = True
    while moved:
        moved = False
        for i in range(len(labels)):
            for j in range(i + 1, len(labels)):
                if labels[i] == labels[j]:
                    continue
                if not left:
                    return labels
                left -= 1
                tried = labels.clone()
                tried[i], tried[j] = labels[j], labels[i]
                value = layer_mismatch(victim, seen, x, tried, seed=seed)
                if value < best:
                    best, labels, moved = value, tried, True
    return labels
