"""How similar two batches of series are, series by series. Values are in their own unit, shape (N, channels, length)."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.errors import BadInput

FLAT = 1e-9
"""A channel whose standard deviation is a smaller share of its largest value has no shape."""


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation over time, mean over the channels, shape (N,); 0 for a channel that is flat in one of the two.

    >>> round(float(correlation(torch.tensor([[[0.0, 1, 2]]]), torch.tensor([[[5.0, 7, 9]]]))), 6)
    1.0
    """
    a, b = _pair(a, b)
    shapes = [one - one.mean(-1, keepdim=True) for one in (a, b)]
    lengths = [one.norm(dim=-1) for one in shapes]
    shaped = torch.stack(
        [length > FLAT * one.abs().amax(-1) * one.shape[-1] ** 0.5 for length, one in zip(lengths, (a, b), strict=True)]
    ).all(0)
    product = (shapes[0] * shapes[1]).sum(-1) / torch.where(shaped, lengths[0] * lengths[1], 1.0)
    return torch.where(shaped, product, 0.0).mean(1)


def smape(a: Tensor, b: Tensor) -> Tensor:
    """Symmetric mean absolute percentage error, from 0 (equal) to 200, shape (N,).

    sMAPE = 100/n Σ 2·|x − y| / (|x| + |y|), with x = ``a``, y = ``b`` and the sum over the n values of one series; where both are 0 the
    summand is 0. It depends on where zero is: a constant added to both makes it smaller.

    >>> smape(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[3.0, 0.0]]])).tolist()
    [50.0]

    Ref: Makridakis 1993, symmetric percentage error — sMAPE
    """
    a, b = _pair(a, b)
    total = a.abs() + b.abs()
    share = torch.where(total > 0, 2 * (a - b).abs() / torch.where(total > 0, total, 1.0), 0.0)
    return 100 * share.flatten(1).mean(1)


def _pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.shape != b.shape or a.dim() != 3 or a.numel() == 0:
        raise BadInput(
            f"series are compared as (N, channels, length) of the same shape, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    return a.detach().double(), b.detach().double()
