"""The attack of the privacy-token paper on large images: a diffusion model whose sampling is guided by the shared gradient."""

from __future__ import annotations

from leakgauge.attacks.diffusion import Learning, WithDiffusion
from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import L2, Matching, Sampling, Spherical, infer_labels


@example("cnn", auxiliary=True, width=8, training=40, steps=60, mixing=0.5, restarts=2)
@checked
def diffusion_guided(
    *,
    prior: str = "",
    steps: int = 250,
    mixing: float = 0.2,
    restarts: int = 1,
    by_label: bool = False,
    width: int = 32,
    training: int = 1000,
) -> WithDiffusion:
    """Huang et al. 2024: sampling from a diffusion model, each step turned towards the gradient that was shared.

        x' = μ(x) + r d/‖d‖,    d = σε + mixing · (−r ∇ₓ ‖∇θ loss(f(x̂₀(x)), ŷ) − g*‖² / ‖·‖ − σε),    r = √n σ

    x̂₀(x) is the denoised x, μ and σ are those of the sampler's next step, n the number of pixels (:class:`~leakgauge.inversion.Spherical`).
    There are ``steps`` steps from pure noise to an image. ``prior`` is a file with a diffusion model, or the name of an embedded one;
    without one, a network of ``width`` is trained for ``training`` steps on the auxiliary images that the server holds.

    Deviations: the paper uses a model that others trained on 256 × 256 faces. Noise levels are evenly spaced in angle and fewer than its
    1,000. Labels are read from the gradient. Of the restarts and of all denoised images on the way, the one whose gradient is nearest
    is kept, not the last. With ``by_label`` the model is asked for the class that was read.

    Ref: Huang et al. 2024, DSG-based reconstruction — gradient-guided conditional diffusion
    """
    return WithDiffusion(
        matching=Matching(
            objective=L2(),
            labels=infer_labels(),
            solver=Sampling(guidance=Spherical(mixing), steps=steps, conditional=by_label),
            restarts=restarts,
            name="diffusion_guided",
        ),
        learning=Learning(prior, width, training),
    )
