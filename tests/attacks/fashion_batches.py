"""Batches of Fashion-MNIST, and how near the images of one are to those of another."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.core import Pixels
from leakgauge.data.embedded import MEAN, STD, fashion

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)


def batch(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    images, labels = fashion("test")
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:size]
    return SPACE.encode(images[rows]), labels[rows]


def decibels(guesses: Tensor, truths: Tensor) -> Tensor:
    """For each guess the PSNR to the nearest truth."""
    shown, true = (SPACE.decode(x).flatten(1).double() for x in (guesses, truths))
    return -10 * torch.cdist(shown, true).square().div(true.shape[1]).amin(1).clamp_min(1e-20).log10()
