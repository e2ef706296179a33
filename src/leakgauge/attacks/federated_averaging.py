"""Data leakage in federated averaging: several local epochs in unknown orders."""

from __future__ import annotations

from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import Adam, Cosine, Descent, FromSpace, Matching, TotalVariation, infer_labels
from leakgauge.inversion.epochs import OverEpochs


@example("cnn", steps=80)
@checked
def federated_averaging(
    *, tv: float = 0.001, agreement: float = 0.1, lr: float = 0.1, steps: int = 1000, restarts: int = 1
) -> OverEpochs:
    """Dimitrov et al. 2022: replays the whole local training on separate images for each epoch, which must agree.

        X̂ = argmin  d(FedAvg(X_1, …, X_E), Δ*)  +  tv · TV(X)  +  agreement · 1/E² Σ_{e,e'} ‖g(X_e) − g(X_e')‖²

    Use it with the channel ``ShuffledFedAvg``; for any other channel it is the same matching without the last term.

    Deviations: d is the cosine distance, which does not need the paper's search for a scale; g is the mean image, the simplest
    of the paper's order-invariant functions; labels are read from the update by our rules and assigned to the steps at random.

    Ref: Dimitrov et al. 2022, Algorithm 2 — reconstruction with the epoch order-invariant prior
    """
    matching = Matching(
        objective=Cosine() + tv * TotalVariation(),
        labels=infer_labels(),
        start=FromSpace(),
        solver=Descent(Adam(lr), steps),
        restarts=restarts,
        name="federated_averaging",
    )
    return OverEpochs(matching, weight=agreement)
