"""What the adversary expects of the data before seeing any signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.inversion.terms import Candidate, Term, norm_per_restart, per_restart


@dataclass(frozen=True)
class TotalVariation(Term):
    """TV(x) = mean |x_{i,j+1} − x_{i,j}| + mean |x_{i+1,j} − x_{i,j}|: neighbouring pixels are similar.

    Along a side of one pixel there are no neighbours, and that summand is zero; so is the second of a series, which has one side.

    Ref: Geiping et al. 2020, Eq. (4) — total variation prior
    """

    def __call__(self, at: Candidate, /) -> Tensor:
        across = (at.x[..., 1:] - at.x[..., :-1]).abs()
        down = (at.x[..., 1:, :] - at.x[..., :-1, :]).abs() if at.x.dim() == 5 else at.x.new_zeros(0)
        found = [per_restart(steps) for steps in (across, down) if steps.numel()]
        return sum(found, at.x.new_zeros(len(at.x)))


@dataclass(frozen=True)
class Smoothness(Term):
    """mean (x_{t+1} − 2·x_t + x_{t−1})²: a series changes its direction slowly. Of an image, along its rows.

    Ref: Hodrick and Prescott 1997, penalty of the filter — sum of squared second differences
    """

    def __call__(self, at: Candidate, /) -> Tensor:
        if at.x.shape[-1] < 3:
            return at.x.new_zeros(len(at.x))
        return per_restart((at.x[..., 2:] - 2 * at.x[..., 1:-1] + at.x[..., :-2]).square())


@dataclass(frozen=True)
class Spectrum(Term):
    """Σ_f (f/F)^decay · |X_f|² / Σ_f |X_f|², with X the Fourier transform over time without f = 0, mean over channels and samples: most
    of a series' power is at low frequencies. It lies between 0 and 1 and does not depend on the size of the series.

    Not from a paper.
    """

    decay: float = 1.0

    def __post_init__(self) -> None:
        if not self.decay > 0:
            raise BadInput(f"Spectrum needs a positive decay, got {self.decay}")

    def __call__(self, at: Candidate, /) -> Tensor:
        power = torch.fft.rfft(at.x)[..., 1:].abs().square()
        if not power.shape[-1]:
            return at.x.new_zeros(len(at.x))
        weights = torch.linspace(0, 1, power.shape[-1] + 1, dtype=power.dtype, device=power.device)[1:] ** self.decay
        total = power.sum(-1)
        return per_restart((weights * power).sum(-1) / total.clamp_min(torch.finfo(power.dtype).tiny))


@dataclass(frozen=True)
class Norm(Term):
    """mean x²: values are small.

    Ref: Yin et al. 2021, fidelity regularisation — l2 image prior
    """

    def __call__(self, at: Candidate, /) -> Tensor:
        return per_restart(at.x.square())


@dataclass(frozen=True)
class BatchNormStatistics(Term):
    """Σ_l ‖μ_l(x) − μ̂_l‖₂ + ‖σ²_l(x) − σ̂²_l‖₂ over the batch normalisation layers.

    μ_l, σ²_l (biased) are the statistics of the inputs of layer l; μ̂_l, σ̂²_l are the public model's running statistics.
    A model without such layers is refused; with ``required=False`` the term is then zero, and a note says so.

    Ref: Yin et al. 2021, fidelity regularisation — batch-norm statistics prior
    """

    required: bool = True

    def captures(self, victim: Victim) -> tuple[str, ...]:
        layers = tuple(
            name
            for name, module in victim.model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None
        )
        if not layers and self.required:
            raise Inapplicable(
                "the model has no batch normalisation with running statistics, so this prior does not exist"
            )
        return layers

    def note(self, victim: Victim) -> str:
        return "" if self.captures(victim) else "batch-norm prior: none, the model has no running statistics"

    def __call__(self, at: Candidate, /) -> Tensor:
        total = at.x.new_zeros(len(at.x))
        names = self.captures(at.victim)
        if not names:
            return total
        replay = at.require_replay()
        buffers = dict(at.victim.model.named_buffers())
        for name in names:
            inputs = replay.inputs(name).transpose(1, 2).flatten(2)  # (R, C, B·positions)
            total = total + norm_per_restart(inputs.mean(2) - buffers[f"{name}.running_mean"])
            total = total + norm_per_restart(inputs.var(2, unbiased=False) - buffers[f"{name}.running_var"])
        return total


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
    """Restarts help each other: mean (x − E)², where E is the mean of all restarts' candidates x_g of one observation, sample by sample.

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
                mean = registered(self.registration, groups, mean).mean(1, keepdim=True)
        return per_restart((groups - mean).square().flatten(0, 1))


def registered(registration: Registration, groups: Tensor, onto: Tensor) -> Tensor:
    """``groups`` (observations, restarts, samples, ...) moved onto ``onto``; series are pictures one pixel high."""
    if groups.dim() == 5:
        return registration(groups.unsqueeze(-2), onto.unsqueeze(-2)).squeeze(-2)
    return registration(groups, onto)
