"""What an attacker may do to the transmitted feature before it is decoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from leakgauge.attacks.decoder import Decoder, Deconvolution, Shape
from leakgauge.errors import BadInput
from leakgauge.priors.decoders.networks import Calibrated, feature_map

Join = Literal["input", "residual", "concat"]
"""How the enhanced feature meets the one that was sent: in its place, added to it, or beside it as further channels."""

SPECK = 1e-6
"""Keeps a constant feature from being divided by zero."""


class Enhancement(Protocol):
    """Makes a network that keeps the shape (N, C, H, W), and says how its result is joined with its input."""

    @property
    def join(self) -> Join: ...
    def __call__(self, channels: int, /) -> nn.Module: ...


@dataclass(frozen=True)
class Fourier:
    """ln(1 + |Re F(z)| + |Im F(z)|) with the orthonormal 2-D Fourier transform F of each channel, standardised per sample.

    Ref: Liu and Zhu 2025, Table 4 — FFT
    """

    join: Join = "concat"

    def __call__(self, channels: int, /) -> nn.Module:
        return Spectrum()


@dataclass(frozen=True)
class Normalise:
    """(z − m) / s with mean m and deviation s of each channel over the auxiliary features.

    Ref: Liu and Zhu 2025, Table 4 — Normalize
    """

    join: Join = "input"

    def __call__(self, channels: int, /) -> nn.Module:
        return Standardised(channels)


@dataclass(frozen=True)
class Learned:
    """conv 3 × 3, instance normalisation, ReLU, dropout of whole channels, conv 1 × 1, all C → C; learned with the decoder.

    ``dropout=0`` is the paper's "w/o-Dropout".

    Ref: Liu and Zhu 2025, Table 4 — Augment by NN
    """

    dropout: float = 0.3
    join: Join = "concat"

    def __call__(self, channels: int, /) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.InstanceNorm2d(channels),
            nn.ReLU(),
            nn.Dropout2d(self.dropout),
            nn.Conv2d(channels, channels, 1),
        )


@dataclass(frozen=True)
class Enhanced:
    """``decoder`` behind ``enhancements``, one after another.

    The paper's best is ``Enhanced(enhancements=(Normalise(), Learned()))``: the feature is normalised, and what a small
    network makes of it stands beside it. ``Normalise`` has to come first, since its statistics are those of what was sent.
    """

    decoder: Decoder = field(default_factory=Deconvolution)
    enhancements: tuple[Enhancement, ...] = (Normalise(), Learned())

    def __post_init__(self) -> None:
        for enhancement in self.enhancements:
            if enhancement.join not in ("input", "residual", "concat"):
                raise BadInput(f"an enhancement is joined as 'input', 'residual' or 'concat', got {enhancement!r}")
        if any(isinstance(enhancement, Normalise) for enhancement in self.enhancements[1:]):
            raise BadInput("Normalise has to be the first enhancement: its statistics are those of the feature as sent")

    def __call__(self, feature: Shape, image: Shape, /) -> nn.Module:
        channels, height, width = feature_map(feature, image)
        stages: list[Joined] = []
        for enhancement in self.enhancements:
            stages.append(Joined(enhancement(channels), enhancement.join))
            channels *= 2 if enhancement.join == "concat" else 1
        return EnhancedNetwork(stages, self.decoder((channels, height, width), image))


class EnhancedNetwork(nn.Module):
    """The enhancements in order, then the decoder."""

    def __init__(self, stages: list[Joined], decoder: nn.Module) -> None:
        super().__init__()
        self.stages = nn.Sequential(*stages)
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.stages(x))

    def calibrate(self, pieces: Iterable[Tensor], /) -> None:
        """Shows the features to whatever wants to see them before training: the first stage, or none."""
        first = self.stages[0].change if len(self.stages) else None
        if isinstance(first, Calibrated):
            first.calibrate(pieces)


class Joined(nn.Module):
    """A change of the feature, joined with the feature itself."""

    def __init__(self, change: nn.Module, join: Join) -> None:
        super().__init__()
        self.change, self.join = change, join

    def forward(self, x: Tensor) -> Tensor:
        changed = self.change(x)
        if self.join == "concat":
            return torch.cat([x, changed], 1)
        return x + changed if self.join == "residual" else changed


class Spectrum(nn.Module):
    """The network of :class:`Fourier`; in float32, since half precision has no Fourier transform of odd sides."""

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.fft2(x.float(), norm="ortho")
        energy = torch.log1p(spectrum.real.abs() + spectrum.imag.abs())
        mean, std = energy.mean((1, 2, 3), keepdim=True), energy.std((1, 2, 3), keepdim=True)
        return ((energy - mean) / (std + SPECK)).to(x.dtype)


class Standardised(nn.Module):
    """The network of :class:`Normalise`: mean and deviation are buffers, set by :meth:`calibrate`."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / (self.std + SPECK)

    def calibrate(self, pieces: Iterable[Tensor], /) -> None:
        """Statistics of features (N, C, H, W), read piece by piece so that a large cache is not copied."""
        count, total, square = 0, torch.zeros(()), torch.zeros(())
        for piece in pieces:
            values = piece.double().transpose(0, 1).flatten(1)
            total, square = values.sum(1) + total.to(values), values.square().sum(1) + square.to(values)
            count += values.shape[1]
        mean = total / count
        self.mean.copy_(mean.view(-1, 1, 1))
        self.std.copy_((square / count - mean.square()).clamp_min(0).sqrt().view(-1, 1, 1))
