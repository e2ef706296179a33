"""Attack on series: the direction of the gradient, with what curves look like as the prior."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import (
    Adam,
    Cosine,
    CosineDecay,
    Descent,
    FromSpace,
    Matching,
    Sign,
    Smoothness,
    Spectrum,
    infer_labels,
)


@example("series", steps=200)
@checked
def smooth_series(
    *, smooth: float = 0.1, spectrum: float = 0.1, lr: float = 0.1, steps: int = 2000, restarts: int = 1
) -> Matching:
    """Not from a paper: direction of the gradient, small second differences and little power at high frequencies.

        x̂ = argmin_x  1 − cos(∇θ loss(f(x), ŷ), g*)  +  smooth · mean (x_{t+1} − 2·x_t + x_{t−1})²
                      +  spectrum · Σ_f (f/F)·|X_f|² / Σ_f |X_f|²

    ``lr`` is the first step of Adam, which sees only the sign of the gradient and falls to zero along half a cosine; values stay within
    the bounds of the series.

    Deviations: none, since no paper describes it.
    """
    return Matching(
        objective=Cosine() + smooth * Smoothness() + spectrum * Spectrum(),
        labels=infer_labels(),
        start=FromSpace(),
        solver=Descent(Adam(lr), steps, gradient=(Sign(),), schedule=CosineDecay(), project=True),
        restarts=restarts,
        name="smooth_series",
    )
