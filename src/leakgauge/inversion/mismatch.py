"""How well a candidate explains an observation, in one number that is comparable between attacks with different objectives."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.channels.dropout import without_dropout
from leakgauge.core import Observation, Targets, Victim
from leakgauge.core.randomness import private_randomness

SWAPS = 64
"""Replays that may be spent on giving labels to the images of a batch."""


def layer_mismatch(victim: Victim, seen: Observation, x: Tensor, y: Targets, *, seed: int = 0) -> float:
    """Mean over the shared tensors of 1 − cos between the replayed tensor and the observed one: 0 explains everything.

        1 − cos(g, g*) = ½ ‖g / ‖g‖ − g* / ‖g*‖‖²

    in float64, since the left side cancels where it matters. Every tensor counts the same: over all of them together the head would
    decide alone, and in a network of sigmoids its gradient fits long before the image does. A tensor that was sent as zeros is left out.
    The adversary computes this; nothing here knows the truth. Dropout is off, because the client's masks are unknown.
    """
    steady = without_dropout(victim) if victim.mode == "train" else victim
    with torch.no_grad(), private_randomness(seed, victim.device):
        signal = seen.channel(steady, x, y)
    found = [
        _apart(signal[name].double().flatten(), target.to(signal[name].device).double().flatten())
        for name, target in seen.signal.items()
        if bool(target.any())
    ]
    return sum(found) / len(found) if found else 1.0


def _apart(own: Tensor, target: Tensor) -> float:
    length = own.norm()
    if not bool(length > 0):
        return 1.0
    return float(0.5 * (own / length - target / target.norm()).square().sum())


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
