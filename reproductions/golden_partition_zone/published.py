"""The numbers of Liu and Zhu 2025, as far as the paper prints them. Errors are summed over channels, as there."""

from __future__ import annotations

from typing import NamedTuple


class Error(NamedTuple):
    """On the adversary's own images and on those it attacks."""

    auxiliary: float
    test: float


ACCURACY = {
    ("ir152", "one-hot"): 0.9059, ("ir152", "LS+"): 0.9076, ("ir152", "LS-"): 0.9049,
    ("vgg19", "one-hot"): 0.9150, ("vgg19", "LS+"): 0.9185,
    ("vit", "one-hot"): 0.7865, ("vit", "LS+"): 0.7926,
}  # fmt: skip
"""Table 2."""

VGG19_MSE = {30: 0.066493, 39: 0.136896}
"""Section 4.2; the other blocks of Fig. 5 are only drawn."""

IR152_MSE = {40: 0.018245, 50: 0.057010}
"""The baselines of Tables 4 and 5; the other blocks of Fig. 4 are only drawn."""

FAITHFUL = 0.02
"""Section 4.2: below this error reconstructions are faithful."""

PREDICTIONS = {
    "Normal": Error(0.170175, 0.169263), "LS+": Error(0.165342, 0.163499), "LS-": Error(0.171152, 0.169522),
    "Log": Error(0.163476, 0.162863), "Power": Error(0.160062, 0.163184),
}  # fmt: skip
"""Table 3."""

ENHANCEMENTS = {
    (50, "baseline"): Error(0.021366, 0.057010),
    (50, "FFT (residual)"): Error(0.089661, 0.112854),
    (50, "FFT (concat)"): Error(0.017355, 0.068011),
    (50, "Normalize (input)"): Error(0.022920, 0.056266),
    (50, "Normalize (residual)"): Error(0.022929, 0.056317),
    (50, "Normalize (concat)"): Error(0.023193, 0.055434),
    (50, "NN without dropout (residual)"): Error(0.014784, 0.061043),
    (50, "NN with dropout (residual)"): Error(0.016584, 0.055617),
    (50, "NN without dropout (concat)"): Error(0.018930, 0.057163),
    (50, "NN with dropout (concat)"): Error(0.016095, 0.051740),
    (50, "Normalize (input) & NN without dropout"): Error(0.015285, 0.055669),
    (50, "Normalize (input) & NN with dropout"): Error(0.015489, 0.051937),
    (40, "baseline"): Error(0.011796, 0.018245),
    (40, "Normalize (input) & NN with dropout"): Error(0.004460, 0.014026),
}
"""Table 4."""

ATTENTION = {
    (50, "baseline"): Error(0.021366, 0.057010),
    (50, "MHA"): Error(0.018156, 0.052159),
    (50, "AttentionAsConv"): Error(0.020217, 0.053299),
    (50, "AttentionAsConv+SE"): Error(0.017121, 0.051737),
    (50, "AttentionAsConv+SE+LSK+MSCA"): Error(0.019283, 0.050579),
    (50, "Attention & NN with dropout"): Error(0.013986, 0.049272),
    (50, "Inversion-IR152"): Error(0.013218, 0.051795),
    (40, "baseline"): Error(0.011796, 0.018245),
    (40, "Attention & NN with dropout"): Error(0.003258, 0.011905),
}
"""Table 5."""
