"""Testing by betting: evidence that grows over time and may be inspected at any moment."""

from __future__ import annotations

import torch
from torch import Tensor


def log_evalues(scores: Tensor, truth: Tensor, *, allowed: Tensor, temperatures: Tensor, stake: float) -> Tensor:
    """ln e = ln((1 - λ) + λ·K·softmax(s/τ)_true) per step, for each temperature; shape (..., steps, temperatures).

    ``scores`` (..., steps, candidates) = s; ``truth`` (steps,) the index of the true candidate; ``allowed`` (steps,
    candidates) marks the K that take part; ``temperatures`` = τ, ``stake`` = λ < 1. If the true index is uniform among the
    allowed ones given the scores, the mean of e is exactly 1, because softmax sums to 1.
    The same number is the InfoNCE summand: its mean is a lower bound of the information, at most ln K.

    Ref: Shekhar and Ramdas 2023, introduction — a bet whose pay-off has mean one under the null
    Ref: van den Oord et al. 2018, Eq. (4) — InfoNCE
    """
    tempered = scores.masked_fill(~allowed, -torch.inf) / temperatures.view(-1, *[1] * scores.ndim)
    index = truth[:, None].expand(*tempered.shape[:-1], 1)
    chosen = tempered.gather(-1, index).squeeze(-1) - tempered.logsumexp(-1)
    count = allowed.sum(-1).to(scores)
    return torch.log((1 - stake) + stake * count * chosen.exp()).movedim(0, -1)


def mix(log_wealth: Tensor, log_weights: Tensor) -> Tensor:
    """ln Σ_c w_c W_c over the last dimension: a mixture of wealth processes, with weights that sum to 1, is a wealth process.

    Ref: Shekhar and Ramdas 2023, introduction — mixing bets
    """
    return torch.logsumexp(log_wealth + log_weights, dim=-1)
