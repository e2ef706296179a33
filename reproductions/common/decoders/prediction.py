"""The attack on what a classifier says: an image from the vector of class probabilities, after a change of scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from leakgauge.attacks.decoder import Decoder, Shape, Vector
from leakgauge.errors import BadInput

FLOOR = 1e-30
"""Smallest probability whose power is taken; softmax underflows to zero."""


class Transform(Protocol):
    """Changes the scale of probabilities (N, K)."""

    def __call__(self, probabilities: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Unchanged:
    """The probabilities themselves ("Normal").

    Ref: Liu and Zhu 2025, Table 3 — Normal
    """

    def __call__(self, probabilities: Tensor, /) -> Tensor:
        return probabilities


@dataclass(frozen=True)
class Logarithm:
    """v_k = max(ln p_k, ``floor``) + ``shift``, raised for all k alike until the smallest is at least 0.

    Only the ``top`` largest probabilities are kept (all if None); the others become 0.

    Ref: Yang et al. 2019, truncation — logarithm of the largest probabilities; Liu and Zhu 2025, Table 3 — Log
    """

    top: int | None = None
    shift: float = 50.0
    floor: float = -1000.0

    def __call__(self, probabilities: Tensor, /) -> Tensor:
        values, places = probabilities.topk(self.top or probabilities.shape[1], dim=1)
        values = values.log().clamp_min(self.floor) + self.shift
        values = values + (-values.amin(1, keepdim=True)).clamp_min(0)
        return torch.zeros_like(probabilities).scatter(1, places, values)


@dataclass(frozen=True)
class Power:
    """v_k = p_k^``exponent``: small probabilities are lifted, the order stays.

    Ref: Liu and Zhu 2025, Table 3 — Power (1/12)
    """

    exponent: float = 1 / 12

    def __call__(self, probabilities: Tensor, /) -> Tensor:
        return probabilities.clamp_min(FLOOR).pow(self.exponent)


@dataclass(frozen=True)
class PredictionVector:
    """A decoder of a vector behind ``transform``. ``logits``: what is sent is to be put through a softmax first."""

    transform: Transform = field(default_factory=Unchanged)
    decoder: Decoder = field(default_factory=Vector)
    logits: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.transform, Logarithm) and self.transform.top is not None and self.transform.top < 1:
            raise BadInput(f"Logarithm keeps at least one probability, got top={self.transform.top}")

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        return InFloat32(Rescaled(self.transform, logits=self.logits), self.decoder(feature, image))


class InFloat32(nn.Sequential):
    """Layers that no autocast touches: bfloat16 would round a logarithm that is shifted by 50 to quarters."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input)


class Rescaled(nn.Module):
    """Softmax where needed, and the transform, in float32: powers and logarithms of small numbers need the range."""

    def __init__(self, transform: Transform, *, logits: bool) -> None:
        super().__init__()
        self.transform, self.logits = transform, logits

    def forward(self, x: Tensor) -> Tensor:
        return self.transform(x.float().softmax(1) if self.logits else x.float())
