"""GradInversion: layer-wise matching, natural-image priors, and restarts that agree with each other."""

from __future__ import annotations

from typing import Literal

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import (
    Adam,
    BatchNormStatistics,
    CosineDecay,
    Descent,
    FirstThatApplies,
    GroupConsistency,
    LayerNorms,
    Matching,
    MinimumEntry,
    Norm,
    Normal,
    Shift,
    TotalVariation,
    infer_labels,
)


@example("cnn", steps=60, restarts=2)
@checked
def gradinversion(
    *,
    tv: float = 0.01,
    l2: float = 1e-4,
    bn: float = 0.01,
    group: float = 0.1,
    registration: Literal["shift"] | None = None,
    lr: float = 0.1,
    noise: float = 0.2,
    steps: int = 2000,
    restarts: int = 4,
) -> Matching:
    """Yin et al. 2021: gradients layer by layer, natural-image priors, and a group of coupled restarts.

        x̂ = argmin Σ_l ‖∇W_l(x, ŷ) − ∇W_l*‖₂ + tv·TV(x) + l2·‖x‖² + bn·R_BN(x) + group·‖x − E(x_g)‖²
        x ← x − λ(t)·Adam(∇x) + λ(t)·noise·η,   η ~ N(0, 1),   λ(t) from ``lr`` to 0 along a cosine

    R_BN compares the candidates' statistics with the running statistics of the public model; a model without batch
    normalisation (a vision transformer) is attacked without it, and a note says so. E is the mean of the restarts of one
    observation, aligned first with ``registration="shift"``. Labels are read by Yin et al.'s rule if it applies, otherwise by
    the usual rules. All restarts of an observation must fit into memory together; otherwise the attack is refused.

    Deviations: the paper aligns with RANSAC-flow, a trained network; here alignment is off, or a whole-pixel shift by phase
    correlation. Norms of images are means of squares, so weights do not depend on the image size. The weights are chosen
    here, and so are ``steps`` and ``restarts``. The learning rate has no warm-up, candidates are not clipped while they move,
    and the kept image is the one that produced the lowest objective.

    Ref: Yin et al. 2021, GradInversion — the whole objective and the noisy update of pixels
    """
    agreement = GroupConsistency(None if registration is None else Shift())
    return Matching(
        objective=LayerNorms()
        + tv * TotalVariation()
        + l2 * Norm()
        + bn * BatchNormStatistics(required=False)
        + group * agreement,
        labels=FirstThatApplies((MinimumEntry(), infer_labels())),
        start=Normal(),
        solver=Descent(Adam(lr), steps, schedule=CosineDecay(), project=False, noise=noise),
        restarts=restarts,
        name="gradinversion",
    )
