"""The null run: what an attack makes of nothing. What it shows is no leakage."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core import Attack, Blindable, Observation, Reconstruction, Victim


def null_run(attack: Attack, victim: Victim, seen: Observation, *, seed: int = 0) -> Reconstruction:
    """The same attack without any information in the signal.

    An attack by matching runs on its priors alone, from the same starts. Any other is given the signal of pure noise.
    """
    if isinstance(attack, Blindable):
        return attack.blind()(victim, seen, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    size = seen.size or 1
    noise = victim.to_input(victim.space.start(size, rng))
    labels = seen.labels
    if not isinstance(labels, Tensor) or (labels.dim() == 1 and not labels.is_floating_point()):
        with torch.no_grad():
            labels = victim(noise).argmin(-1)  # an unlikely class, so the gradient does not vanish
    signal = {name: g for name, g in seen.channel(victim, noise, labels).items() if name in seen.signal}
    blank = Observation(signal=signal, channel=seen.channel, size=seen.size)
    return attack(victim, blank, seed=seed)
