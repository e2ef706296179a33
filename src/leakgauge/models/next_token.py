"""The loss of a language model that predicts each token from those before it."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""Targets that do not count, as in PyTorch and transformers."""


@dataclass(frozen=True)
class NextToken:
    """−mean_p log softmax(scores_{p−1})[ids_p]: the targets are the ids (N, length) themselves.

    ``padding`` fills short sentences after their end. The first one after a sentence is its end and is predicted; what follows is left out.
    """

    padding: int | None = None

    def __call__(self, scores: Tensor, ids: Tensor) -> Tensor:
        targets = ids[:, 1:]
        if self.padding is not None:
            targets = targets.masked_fill((targets == self.padding) & (ids[:, :-1] == self.padding), IGNORED)
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


@dataclass(frozen=True)
class MaskedTokens:
    """−mean log softmax(scores_p)[y_p] over the places that were masked; ``y`` (N, length) is −100 at all others."""

    padding: int | None = None

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=IGNORED)
