"""Comparison of reconstructed token ids with the true ones: the place where the truth of a text is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.core import Reconstruction
from leakgauge.measures import text


@dataclass(frozen=True)
class TextScores:
    """``tokens``, ``order`` and ``tau``: one value per true sentence, in the order of the truth.

    ``tokens`` is the share of right places, ``order`` that of neighbouring pairs kept, ``tau`` Kendall's for tokens that
    occur once. ``precision`` and ``recall`` are of the sets of distinct tokens of the whole batch. ``labels`` is 1.0
    where the label is right, None where it was not read.
    """

    tokens: tuple[float, ...]
    order: tuple[float, ...]
    tau: tuple[float, ...]
    precision: float
    recall: float
    labels: tuple[float, ...] | None = None


def score_text(reconstruction: Reconstruction, x: Tensor, y: Tensor | None) -> TextScores:
    """Metrics of the chosen reconstruction against the true ids ``x`` (N, length) and labels ``y``, paired one to one."""
    guesses, truths = reconstruction.x.detach().cpu(), x.detach().cpu()
    order = torch.argsort(text.pair_sentences(guesses, truths))  # order[j] is the guess paired with truth j
    guesses = guesses[order]
    precision, recall = text.set_precision_recall(guesses, truths)
    right = None
    if reconstruction.y is not None and y is not None:
        right = tuple((reconstruction.y.cpu()[order] == y.cpu()).double().tolist())
    return TextScores(
        tokens=tuple(text.token_accuracy(guesses, truths).tolist()),
        order=tuple(text.adjacent_pairs(guesses, truths).tolist()),
        tau=tuple(text.kendall_tau(guesses, truths).tolist()),
        precision=precision,
        recall=recall,
        labels=right,
    )
