"""Updates of the opposite sign, old minus new weights: replayed they would lead to nothing, and nobody would know why."""

from __future__ import annotations

from leakgauge.core import Observation, Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.labels import batch_size, head_gradient

BALANCED = 0.05
"""Largest |Σ ∂b_i| / Σ |∂b_i| of a gradient whose signs are trusted. Without noise it is zero but for rounding and weight decay."""


def refuse_the_opposite(victim: Victim, seen: Observation, *, source: str) -> None:
    """Refuses an update that only makes sense with its sign reversed.

    Under cross entropy ∂b_i = mean p_i − n_i / B: a class of which there is no sample has a positive entry, in every local step, so
    at most ``size`` entries are negative. Where more are, and at most ``size`` are positive, it is the other way round. Nothing can
    be said of a head without bias, of other losses, of batches that may hold every class, and of noise.
    """
    try:
        bias = head_gradient(victim, seen, "bias")
    except Inapplicable:
        return
    size, positive, negative = batch_size(seen), int((bias > 0).sum()), int((bias < 0).sum())
    balanced = abs(float(bias.sum())) <= BALANCED * float(bias.abs().sum())
    if balanced and negative > size >= positive:
        raise BadInput(
            f"{source} has the opposite sign: as it stands, the scores of {negative} classes were raised by {size} sample(s); "
            "give new minus old weights, or the gradient as backward() leaves it"
        )
