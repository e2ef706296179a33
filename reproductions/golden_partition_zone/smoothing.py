"""Label smoothing with a factor of either sign, as the paper writes it and as its code has it; PyTorch's is a third convention.

For K classes, true class c and factor α the targets y' are

| convention | y'_c | y'_k, k ≠ c | sum |
|---|---|---|---|
| the paper | 1 − α | α / K | 1 − α/K |
| its released code | 1 − α | α / (K − 1) | 1 |
| PyTorch | 1 − α + α/K | α / K | 1 |

The code's α is PyTorch's α · K / (K − 1). PyTorch's own loss takes a negative factor without a word and ignores it.
A negative factor rewards small probabilities of the other classes without end: the loss has no lower bound.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.errors import BadInput


@dataclass(frozen=True)
class Smoothing(ABC):
    """L = mean over the batch of −Σ_k y'_k ln p_k with p = softmax(logits); a loss that a victim or a training can take.

    With targets that sum to S, ∂L/∂logits of one sample is S·p − y'. The paper writes p − y' throughout, which is this
    only where S = 1; in its own convention S = 1 − α/K.

    Ref: Liu and Zhu 2025, Table 1 — cross entropy with smoothed targets y'
    """

    alpha: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.alpha) or self.alpha >= 1:
            raise BadInput(f"label smoothing needs a factor below 1 (negative ones too), got {self.alpha}")

    @abstractmethod
    def weights(self, classes: int) -> tuple[float, float]:
        """Target of the true class and of every other one."""

    def targets(self, labels: Tensor, classes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """y' (N, K) of labels (N,)."""
        if classes < 2:
            raise BadInput(f"label smoothing needs at least 2 classes, got {classes}")
        true, other = self.weights(classes)
        rows = torch.full((len(labels), classes), other, device=labels.device, dtype=dtype)
        return rows.scatter(1, labels[:, None], true)

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        targets = self.targets(labels, logits.shape[1], dtype=logits.dtype)
        return -(targets * F.log_softmax(logits, 1)).sum(1).mean()


@dataclass(frozen=True)
class PaperSmoothing(Smoothing):
    """Targets 1 − α and α/K; they sum to 1 − α/K. α = 0.3 is the paper's LS+, α = −0.05 its LS−.

    Ref: Liu and Zhu 2025, Table 1 — y'_c = 1 − α, y'_k = α/K
    """

    def weights(self, classes: int) -> tuple[float, float]:
        return 1 - self.alpha, self.alpha / classes


@dataclass(frozen=True)
class CodeSmoothing(Smoothing):
    """Targets 1 − α and α/(K − 1), as the paper's released code has them.

    Ref: Szegedy et al. 2016, section 7 — label-smoothing regularisation; its factor is α·K/(K − 1) here
    """

    def weights(self, classes: int) -> tuple[float, float]:
        return 1 - self.alpha, self.alpha / (classes - 1)
