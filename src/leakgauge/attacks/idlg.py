"""Improved deep leakage from gradients."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import L2, LBFGS, Matching, Normal, SignRule


@example("lenet", steps=8, restarts=2)
@checked
def idlg(*, lr: float = 1.0, steps: int = 300, restarts: int = 1) -> Matching:
    """Zhao et al. 2020: the label from the sign of the head's gradient, then DLG over the image alone.

        ĉ = the one row of ∂W that opposes all others,   x̂ = argmin ‖∇θ loss(f(x), ĉ) − g*‖²

    ``lr`` and ``steps`` as in :func:`~leakgauge.attacks.dlg.dlg`. One sample only, cross entropy only; otherwise ``Inapplicable``.

    Deviations: as for DLG. The paper's experiments use a ReLU-free LeNet with learning rate 1.

    Ref: Zhao et al. 2020, Algorithm 1 — iDLG
    """
    return Matching(
        objective=L2(),
        labels=SignRule(),
        start=Normal(),
        solver=LBFGS(lr=lr, steps=steps),
        restarts=restarts,
        name="idlg",
    )
