"""A term that lets restarts help each other: candidates of one observation are pulled towards their mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.inversion.terms import Candidate, Term, per_restart


class Registration(Protocol):
    """Moves pictures (..., channels, height, width) onto ``onto``, which may be broadcast."""

    def __call__(self, pictures: Tensor, onto: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Shift:
    """Registers by a circular shift of at most ``largest`` whole pixels each way, found by phase correlation.

    With X, Y the Fourier transforms of picture and target, the peak of the inverse transform of Σ_c Y·X̄ / |Σ_c Y·X̄| (sum over
    channels) is the shift.

    Ref: Kuglin and Hines 1975, *The phase correlation image alignment method* — shift from the cross-power spectrum
    """

    largest: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.largest, int) or self.largest < 0:
            raise BadInput(f"Shift needs an integer number of pixels of at least 0, got {self.largest!r}")

    def __call__(self, pictures: Tensor, onto: Tensor, /) -> Tensor:
        height, width = pictures.shape[-2:]
        cross = (torch.fft.fft2(onto) * torch.fft.fft2(pictures).conj()).sum(-3)
        peak = torch.fft.ifft2(cross / cross.abs().clamp_min(torch.finfo(pictures.dtype).tiny)).real
        allowed = self._near(height, pictures)[:, None] & self._near(width, pictures)
        best = torch.where(allowed, peak, -torch.inf).flatten(-2).argmax(-1)[..., None, None, None]
        at_row = (torch.arange(height, device=pictures.device)[:, None] - best // width) % height
        at_column = (torch.arange(width, device=pictures.device) - best % width) % width
        shape = pictures.shape
        return pictures.gather(-2, at_row.expand(shape)).gather(-1, at_column.expand(shape))

    def _near(self, side: int, like: Tensor) -> Tensor:
        """Which circular shifts of a side are allowed."""
        at = torch.arange(side, device=like.device)
        return torch.minimum(at, side - at) <= self.largest


@dataclass(frozen=True)
class GroupConsistency(Term):
    """mean (x − E)², where E is the mean of all restarts' candidates x_g of one observation, sample by sample.

    With a ``registration`` T the restarts are first aligned with their plain mean μ: E = mean of T(x_g → μ). E is a fixed
    target; without registration, differentiating it would not change the gradient. A single restart is its own mean, so the
    term is zero. Samples are compared by position in the batch: all restarts must have their labels in the same order, as the
    label rules ensure.

    Ref: Yin et al. 2021, group consistency regularisation — distance to the registered mean of all seeds
    """

    registration: Registration | None = None
    couples_restarts: ClassVar[bool] = True

    def __call__(self, at: Candidate, /) -> Tensor:
        groups = at.groups()
        with torch.no_grad():
            mean = groups.mean(1, keepdim=True)
            if self.registration is not None:
                mean = self.registration(groups, mean).mean(1, keepdim=True)
        return per_restart((groups - mean).square().flatten(0, 1))
