"""What the adversary expects of the data before seeing any signal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.errors import Inapplicable
from leakgauge.inversion.terms import Candidate, Term, norm_per_restart, per_restart


@dataclass(frozen=True)
class TotalVariation(Term):
    """TV(x) = mean |x_{i,j+1} − x_{i,j}| + mean |x_{i+1,j} − x_{i,j}|: neighbouring pixels are similar.

    Along a side of one pixel (a signal, a row of a table) there are no neighbours, and that summand is zero.

    Ref: Geiping et al. 2020, Eq. (4) — total variation prior
    """

    def __call__(self, at: Candidate, /) -> Tensor:
        across = (at.x[..., :, 1:] - at.x[..., :, :-1]).abs()
        down = (at.x[..., 1:, :] - at.x[..., :-1, :]).abs()
        found = [per_restart(steps) for steps in (across, down) if steps.numel()]
        return sum(found, at.x.new_zeros(len(at.x)))


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
