"""White-box inversion of features: finds an image with the features that were sent."""

from __future__ import annotations

from leakgauge.channels import Features
from leakgauge.core.examples import example
from leakgauge.errors.checked import checked
from leakgauge.inversion import (
    Adam,
    CloudPrediction,
    Constant,
    CosineDecay,
    Descent,
    Matching,
    RelativeL2,
    TotalVariation,
)


@example("cnn", channel=Features("features.5"), steps=50)
@checked
def feature_matching(*, tv: float = 0.03, lr: float = 0.3, steps: int = 500, restarts: int = 1) -> Matching:
    """He et al. 2019: regularised maximum likelihood estimation with known edge weights.

        x̂ = argmin_{x in box}  ‖M1(x) − z‖² / ‖z‖²  +  tv · TV(x)

    z are the sent features (``Features(cut)``), M1 the edge, ``tv`` is λ of the paper and ``lr`` the step of Adam, which decays to
    zero over ``steps``. The samples of a batch do not affect each other: the result is the same as one by one. Labels are what
    the cloud computes from z.

    ``tv`` and ``lr`` were chosen on six Fashion-MNIST images and the embedded small VGG, at four cuts; deeper cuts need a larger
    ``tv``. A small ``lr`` gets stuck: where a ReLU is off, the features give no direction.

    Deviations: the distance is relative to ‖z‖², so one λ serves all cuts (the paper tunes it by depth, 0 to 1e5, for sums);
    the start is a grey image instead of zeros; x stays a valid image; total variation is the mean of absolute differences.

    Ref: He et al. 2019, white-box attack — regularised maximum likelihood estimation
    """
    return Matching(
        objective=RelativeL2() + tv * TotalVariation(),
        labels=CloudPrediction(),
        start=Constant(0.5),
        solver=Descent(Adam(lr), steps, schedule=CosineDecay(), project=True),
        restarts=restarts,
        name="feature_matching",
    )
