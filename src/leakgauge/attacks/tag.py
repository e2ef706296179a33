"""TAG: squared plus absolute distance."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import L1, L2, AdamW, Decaying, Descent, Joint, Matching, Normal


@example("lenet", steps=100)
@checked
def tag(*, alpha: float = 0.1, decay: float = 1.0, lr: float = 0.05, steps: int = 1000, restarts: int = 1) -> Matching:
    """Deng et al. 2021: squared plus absolute differences, early layers weighted more.

        x̂, ŷ = argmin Σ_l ‖g_l − g*_l‖² + alpha · Σ_l w_l ‖g_l − g*_l‖₁,    w_l = exp(−decay · l / L)

    ``alpha`` is the paper's α at the first layer; ``decay`` is how it falls with depth. Image and label are optimised together by
    AdamW with learning rate ``lr``.

    Deviations: the paper attacks text; here the candidate is anything in the victim's space. The paper describes the decay of α
    only as "larger near the input"; the exponential form is ours.

    Ref: Deng et al. 2021, Algorithm 1 — TAG
    """
    return Matching(
        objective=L2() + alpha * L1(weights=Decaying(decay)),
        labels=Joint(),
        start=Normal(),
        solver=Descent(AdamW(lr), steps, project=False),
        restarts=restarts,
        name="tag",
    )
