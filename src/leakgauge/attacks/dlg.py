"""Deep leakage from gradients."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import L2, LBFGS, Joint, Matching, Normal


@example("lenet", steps=8, restarts=2)
@checked
def dlg(*, lr: float = 1.0, steps: int = 300, restarts: int = 1) -> Matching:
    """Zhu et al. 2019: image and label together by L-BFGS.

        x̂, ŷ = argmin ‖∇θ loss(f(x), softmax(l)) − g*‖²        over x and the label logits l, both from N(0, 1)

    ``lr`` is L-BFGS's learning rate, ``steps`` its outer steps (20 inner iterations each, history 100), as in the paper.
    Needs a twice differentiable network: the paper uses sigmoids instead of ReLU and no strides beyond 2.

    Deviations: candidates are in the model's input space, which is the image itself if the victim's ``Pixels`` has no mean and
    std; of several restarts the one with the lowest objective is kept.

    Ref: Zhu et al. 2019, Algorithm 1 — DLG
    """
    return Matching(
        objective=L2(), labels=Joint(), start=Normal(), solver=LBFGS(lr=lr, steps=steps), restarts=restarts, name="dlg"
    )
