"""Smooth images first, detail last: total variation that falls from stage to stage, along the gradient at the output."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import (
    Adam,
    BalancedCosine,
    Descent,
    FromSpace,
    HeadFeatures,
    Matching,
    Sign,
    Staged,
    StepDecay,
    TotalVariation,
    infer_labels,
)
from leakgauge.inversion.output_gradient import FEATURES

SMOOTHER = (30.0, 10.0, 3.0, 1.0)
"""Weight of total variation in each stage, as multiples of the last."""
SLOWER = 0.6
"""Factor on the learning rate from one stage to the next."""


@example("cnn", steps=80)
@checked
def falling_variation(
    *, tv: float = 0.01, power: float = 0.5, lr: float = 0.1, steps: int = 10_000, restarts: int = 1
) -> Staged:
    """Inverting gradients in four stages, of which each allows more detail than the one before.

        x̂ = argmin_{x in box}  1 − ⟨g(x), g*⟩_w / (‖g(x)‖_w·‖g*‖_w)  +  c·tv · TV(x),      c = 30, 10, 3, 1

    The weights w of :class:`BalancedCosine` (``power``) keep long gradients from drowning the others. For a single image and
    for small batches the replay follows the gradient at the output, read from the head, in place of the loss (:class:`OutputGradient`): a
    trained network is so certain that a replayed loss cannot fit. Of a batch the features of each image are compared too
    (:class:`HeadFeatures`). Each stage takes a quarter of the ``steps`` of signed Adam, at 0.6 times the rate ``lr``
    of the one before.

    A large weight finds the outlines and then holds the image back from its detail; a small one never finds the outlines of a trained
    network. The weights were chosen on other images than those that docs/attacks.md reports.

    Deviations: the paper has one weight of total variation, the plain cosine, and replays the loss. Fewer than four ``steps`` leave out the
    first stages.

    Ref: Geiping et al. 2020, Eq. (4) — inverting gradients, in stages
    """
    each = steps // len(SMOOTHER)
    lengths = [each] * (len(SMOOTHER) - 1) + [steps - each * (len(SMOOTHER) - 1)]
    stages = tuple(
        Matching(
            objective=BalancedCosine(power) + multiple * tv * TotalVariation() + FEATURES * HeadFeatures(),
            labels=infer_labels(),
            start=FromSpace(),
            solver=Descent(Adam(lr * SLOWER**k), length, gradient=(Sign(),), schedule=StepDecay(), project=True),
            restarts=restarts,
            name="falling_variation",
            along=True,
        )
        for k, (multiple, length) in enumerate(zip(SMOOTHER, lengths, strict=True))
        if length
    )
    return Staged(stages, name="falling_variation")
