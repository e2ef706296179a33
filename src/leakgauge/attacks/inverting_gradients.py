"""Inverting gradients: cosine distance and total variation."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import (
    Adam,
    Cosine,
    Descent,
    FromSpace,
    HeadFeatures,
    Matching,
    Sign,
    StepDecay,
    TotalVariation,
    infer_labels,
)
from leakgauge.inversion.output_gradient import FEATURES


@example("cnn", steps=80, tv=0.01)
@checked
def inverting_gradients(
    *, tv: float = 0.1, lr: float = 0.1, steps: int = 4800, restarts: int = 1, along: bool = False
) -> Matching:
    """Geiping et al. 2020: direction of the gradient, smooth images, signed Adam.

        x̂ = argmin_{x in box}  1 − ⟨∇θ loss(f(x), ŷ), g*⟩ / (‖∇θ loss‖·‖g*‖)  +  tv · TV(x)

    ``tv`` is α of the paper (0.1 for small images in its public configuration), ``lr`` the step of Adam, multiplied by 0.1
    after 3/8, 5/8 and 7/8 of ``steps``; only the sign of the image's gradient is used; x stays a valid image. With ``along``, which is not
    in the paper, the replay of one sample or of a small batch follows the gradient at the output that the head shows, in place of the loss:
    a trained network is often so sure that the loss's own gradient is rounded (:class:`~leakgauge.inversion.OutputGradient`). The features
    of the samples of a batch are compared too (:class:`~leakgauge.inversion.HeadFeatures`).

    Deviations: labels are inferred from the head's gradient instead of being given (sign rule for one sample, counts from
    the bias otherwise); the kept image is the one that produced the lowest objective, not the last.

    Ref: Geiping et al. 2020, Eq. (4) — inverting gradients
    """
    objective = Cosine() + tv * TotalVariation()
    return Matching(
        objective=objective + FEATURES * HeadFeatures() if along else objective,
        labels=infer_labels(),
        start=FromSpace(),
        solver=Descent(Adam(lr), steps, gradient=(Sign(),), schedule=StepDecay(), project=True),
        restarts=restarts,
        name="inverting_gradients",
        along=along,
    )
