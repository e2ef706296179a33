"""Inversion of training-mode updates, with the client's normalisation statistics as far as they can be known."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import (
    Adam,
    Cosine,
    Descent,
    Guided,
    Matching,
    Revealed,
    RunningStatistics,
    Sign,
    StepDecay,
    Strongest,
    TotalVariation,
    infer_labels,
)


@example("cnn", steps=80)
@checked
def feasibility(
    *, tv: float = 0.01, statistics: float = 0.1, lr: float = 0.1, steps: int = 4800, restarts: int = 1
) -> Guided:
    """Valadi et al. 2026: inverting gradients, plus the client's normalisation statistics as far as they are known.

        x̂ = argmin_{x in box}  1 − cos(∇θ loss(x, ŷ), g*)  +  tv · TV(x)  +  statistics · Σ_l ‖μ_l − μ*_l‖ + ‖σ²_l − σ²*_l‖

    ``tv`` is λ_TV, ``statistics`` λ_BN, ``lr`` η of the paper. μ*, σ²* are the batch's own if the client shared its running
    statistics (reveal ``Buffers()``), else those of the best aligned auxiliary batch (reveal ``Auxiliary(…)``); with neither, the
    last term is left out. The search starts at a revealed noisy copy of the target, if there is one.

    Deviations: the paper gives ranges, not values (λ_TV 1e-6 to 1e-1, λ_BN 0, 1e-4 or 1e-2, η 1e-4 to 100). Ours are chosen;
    λ_BN is larger than the paper's because that worked better with exact statistics on the embedded network.
    Labels are read from the gradient unless revealed (the paper gives them). The replay has no dropout, but the client does,
    unless the victim is created without it, as in the paper.

    Ref: Valadi et al. 2026, section 4.3 — training-mode inversion with exact or proxy statistics
    """
    return Guided(_matching("feasibility", tv, lr, steps, restarts), statistics=Strongest(), weight=statistics)


@example("cnn", steps=80, statistics=0.01)
@checked
def huang(
    *, tv: float = 0.01, statistics: float = 0.1, lr: float = 0.1, steps: int = 4800, restarts: int = 1
) -> Guided:
    """Huang et al. 2021: the same, but with the running statistics in place of the batch's; the paper's baseline.

    Deviations: weights are those of :func:`feasibility`, so the two differ only in the statistics; labels are read from the
    gradient unless revealed.

    Ref: Huang et al. 2021, section 3.2 — inversion with running statistics as a prior
    """
    return Guided(_matching("huang", tv, lr, steps, restarts), statistics=RunningStatistics(), weight=statistics)


def _matching(name: str, tv: float, lr: float, steps: int, restarts: int) -> Matching:
    return Matching(
        objective=Cosine() + tv * TotalVariation(),
        labels=infer_labels(),
        start=Revealed(),
        solver=Descent(Adam(lr), steps, gradient=(Sign(),), schedule=StepDecay(), project=True),
        restarts=restarts,
        name=name,
    )
