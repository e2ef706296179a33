"""TAG's distance with the labels read from the gradient first, as iDLG does for DLG."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.attacks.tag import tag
from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import Adam, CosineDecay, Descent, Matching, read_labels


@example("vit_a", steps=80)
@checked
def tag_read_labels(
    *, alpha: float = 0.1, decay: float = 1.0, lr: float = 0.1, steps: int = 1000, restarts: int = 1
) -> Matching:
    """TAG's distance for the images alone, with labels read from the head's gradient as in iDLG. Not from a paper.

        ŷ = labels read from ∂W, ∂b of the head,   x̂ = argmin Σ_l ‖g_l − g*_l‖² + alpha · Σ_l w_l ‖g_l − g*_l‖₁

    ``alpha`` and ``decay`` as in :func:`~leakgauge.attacks.tag.tag`; Adam with a learning rate that falls from ``lr`` to zero
    along half a cosine; pixels stay in their range. Measured (reproductions/april/beyond.md): of all recipes that match gradients it
    found most on an untrained CNN and on untrained vision transformers with positions that are not small. On trained networks it
    found nothing, where :func:`~leakgauge.attacks.inverting_gradients.inverting_gradients` may.

    It checks the conditions for reading labels: plain cross entropy on one label per sample, a linear head with a shared
    gradient, a known batch size. A single label is read exactly (iDLG's rule). The labels of a batch are counted, which is exact
    while the model is untrained and an estimate later; a noisy gradient gives a guess. If no rule applies the attack is
    ``Inapplicable``; :func:`~leakgauge.attacks.tag.tag` optimises the labels instead. Revealed labels are used.

    Deviations: TAG optimises the labels together with the images, by AdamW at a constant rate and without bounds.

    Ref: Deng et al. 2021, Algorithm 1 — TAG's distance, labels read off beforehand
    """
    return replace(
        tag(alpha=alpha, decay=decay, restarts=restarts),
        labels=read_labels(),
        solver=Descent(Adam(lr), steps, schedule=CosineDecay(), project=True),
        name="tag_read_labels",
    )
