"""When a closed form may call its result exact without the truth: its equations determine it, and its replay makes the whole update."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core import Observation, Targets, Victim
from leakgauge.core.randomness import private_randomness

EXACT = 1e-3
"""Largest possible error of a certified sample (root mean square), as a share of the pixels' range; 60 dB."""
SMALL_ERROR = 0.01
"""Pixels may be off by this share of their range while a picture still counts as recovered: 40 dB."""
RESIDUAL = 1e-3
"""How far the replay of every shared tensor may be from what was sent, relative to its norm. Rounding in float32 leaves 1e-6 to 1e-4."""


def wrong_pixels(error: float) -> str:
    """What an ``error`` of more than ``SMALL_ERROR`` means, for those who decide whether to attack."""
    return f"rounding or noise in the gradients makes pixels wrong by about {100 * error:.0f} % of their range"


def replay_residual(victim: Victim, seen: Observation, x: Tensor, y: Targets, *, seed: int = 0) -> float:
    """max over the shared tensors l of ‖s g_l − g*_l‖ / ‖g*_l‖, with g the replay of ``x, y``, g* what was sent, and one factor s for all.

    s = ⟨g, g*⟩ / ‖g‖² undoes a clipping of the whole update. Noise, pruning, rounding to few bits, a learning rate of its own for some
    tensors, other weights or other samples leave a residual. A tensor that was sent as zeros must be replayed as zeros.
    """
    with torch.no_grad(), private_randomness(seed, victim.device):
        replayed = seen.channel(victim, x, y)
    pairs = [
        (replayed[n].double().flatten(), t.to(replayed[n].device).double().flatten()) for n, t in seen.signal.items()
    ]
    own = sum(float(g @ g) for g, _ in pairs)
    if not own:
        return float("inf")
    factor = sum(float(g @ t) for g, t in pairs) / own
    largest = max(float(t.norm()) for _, t in pairs)
    floor = torch.finfo(victim.dtype).eps * largest  # a tensor of zeros up to rounding
    return max(float((factor * g - t).norm()) / max(float(t.norm()), floor / RESIDUAL) for g, t in pairs)


def certify(
    victim: Victim, seen: Observation, x: Tensor, y: Targets | None, *, error: float | None, seed: int = 0
) -> Tensor:
    """Whether the only sample of an update is exact, (1,): the attack's equations leave at most the ``error`` (root mean square, as a share
    of the range; None if they leave something open), and the replay agrees with every tensor that was sent.
    """
    if error is None or not error < EXACT or y is None:
        return torch.tensor([False], device=x.device)
    return torch.tensor([replay_residual(victim, seen, x, y, seed=seed) < RESIDUAL], device=x.device)
