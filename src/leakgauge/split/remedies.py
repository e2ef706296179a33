"""What would make a cut safe that is not: noise on the features, or fewer numbers to send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core import Victim
from leakgauge.core.randomness import draw_indices
from leakgauge.defenses import GaussianNoise
from leakgauge.split.inverters import LinearInverter
from leakgauge.split.scan import Images, scan
from leakgauge.split.zone import kept

LEVELS = (0.5, 1.0, 2.0, 4.0)
"""Norms of the noise that are tried, relative to the features' own."""
MOST_IMAGES = 1000


@dataclass(frozen=True)
class Remedy:
    """``noise`` is the least tried norm, relative to the features', with which regression at ``cut`` leaves the threshold; None if
    none did. ``accuracy`` is the model's with it, where there are labels. A cut that sends ``width`` numbers or fewer leaves the
    threshold against every linear attack, whatever the numbers are.
    """

    cut: str
    noise: float | None
    fvu: float | None
    reidentified: float | None
    accuracy: float | None
    width: int


def find_remedy(
    victim: Victim,
    auxiliary: Images,
    test: Images,
    cut: str,
    *,
    threshold: float,
    recognised: float,
    levels: Sequence[float] = LEVELS,
    seed: int = 0,
) -> Remedy:
    """Tries noise at one cut, weakest first, against the regression that is trained on noisy features."""
    width = linear_width(auxiliary.images, threshold)
    for level in levels:
        (row,) = scan(
            victim,
            auxiliary,
            test,
            [cut],
            inverter=LinearInverter(),
            defenses=[GaussianNoise(relative=level)],
            seed=seed,
        ).rows
        if kept(row.fvu, row.reidentified, threshold=threshold, recognised=recognised) >= threshold:
            return Remedy(cut, level, row.fvu, row.reidentified, row.accuracy, width)
    return Remedy(cut, None, None, None, None, width)


def linear_width(images: Tensor, threshold: float) -> int:
    """How many numbers per image leave ``threshold`` of the variance, if they are the best ones and are read linearly.

    The first k principal components explain more of the images than any other k linear features, so with k numbers no linear
    reconstruction leaves less than 1 - Σ_{i≤k} λ_i / Σ λ_i.

    Ref: Golub and Van Loan 2013, Theorem 2.4.8 — the best approximation of rank k
    """
    some = images[draw_indices(len(images), MOST_IMAGES)].flatten(1).double().cpu()
    centred = some - some.mean(0)
    values = torch.linalg.eigvalsh(centred @ centred.T).flip(0).clamp_min(0)
    left = 1 - values.cumsum(0) / values.sum()
    return int((left >= threshold).sum())
