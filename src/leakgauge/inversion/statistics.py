"""Statistics of the inputs of normalisation layers: measured, recovered from buffers, and matched to a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.errors import Inapplicable
from leakgauge.inversion.terms import Candidate, Term, norm_per_restart

BATCH_NORM = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and (biased) variance of the inputs of one layer: per channel for batch normalisation, shape (k,) or (R, k)."""

    mean: Tensor
    var: Tensor


def batch_moments(before: Moments, after: Moments, *, retained: float, n: int) -> Moments:
    """Moments of the batch that changed the running statistics from ``before`` to ``after``, in float64.

        b = (r' − w·r) / (1 − w),    σ² = (n − 1)/n · b_var

    r, r' are ``before`` and ``after``; w is ``retained``, the weight that the old value kept; n = B·H·W is the number of values
    per channel: running variances are unbiased (Bessel's factor n/(n − 1)), but the forward pass normalises with the biased
    one. Over several updates b is their average, with more weight on later ones. Rounding of r' grows by 1/(1 − w).

    Ref: Valadi et al. 2026, section 4.3.2 — exact batch statistics from consecutive running statistics
    """
    mean, var = (
        (new.double() - retained * old.double()) / (1 - retained)
        for old, new in ((before.mean, after.mean), (before.var, after.var))
    )
    return Moments(mean, var * ((n - 1) / n))


def retained_weight(momentum: float | None, *, updates: int, tracked: int) -> float:
    """Share of the old running value after ``updates`` updates: (1 − momentum)^updates.

    With momentum None the running value is the plain average of all batches, ``tracked`` before: tracked / (tracked + updates).

    >>> retained_weight(0.1, updates=1, tracked=0), retained_weight(None, updates=1, tracked=3)
    (0.9, 0.75)
    """
    return tracked / (tracked + updates) if momentum is None else (1.0 - momentum) ** updates


def layer_moments(module: nn.Module, inputs: Tensor) -> Moments:
    """Moments, shape (R, k), of R batches ``inputs`` (R, B, ...) as the layer itself forms them.

    Batch normalisation: one pair per channel, over samples and positions. Layers that normalise each sample separately
    (LayerNorm, its channels-first form LayerNorm2d, GroupNorm): their own means and variances, averaged over samples and
    positions, because positions in the image are unknown; one pair per layer, or one per group.

    Ref: Valadi et al. 2026, section 4.3.3 — statistics of BatchNorm and LayerNorm architectures alike
    """
    if isinstance(module, BATCH_NORM):
        values = inputs.transpose(1, 2).flatten(2)
        return Moments(values.mean(2), values.var(2, unbiased=False))
    if isinstance(module, nn.GroupNorm):
        values = inputs.unflatten(2, (module.num_groups, -1)).flatten(3)  # (R, B, groups, values)
        return Moments(values.mean(3).mean(1), values.var(3, unbiased=False).mean(1))
    if isinstance(module, nn.LayerNorm):
        axes = [2] if _channels_first(module) else list(range(-len(module.normalized_shape), 0))
        mean, var = inputs.mean(axes), inputs.var(axes, unbiased=False)
        return Moments(mean.flatten(1).mean(1, keepdim=True), var.flatten(1).mean(1, keepdim=True))
    raise Inapplicable(f"no statistics are known for a {type(module).__name__}")


def _channels_first(module: nn.LayerNorm) -> bool:
    """timm's and torchvision's LayerNorm2d are LayerNorms over the channels of (B, C, H, W)."""
    return any("2d" in kind.__name__ for kind in type(module).__mro__)


def normalisation_layers(victim: Victim) -> tuple[str, ...]:
    """Names of all layers for which :func:`layer_moments` is defined."""
    kinds = (BATCH_NORM, nn.GroupNorm, nn.LayerNorm)
    return tuple(name for name, module in victim.model.named_modules() if isinstance(module, kinds))


def tracking_layers(victim: Victim) -> tuple[str, ...]:
    """Names of the batch normalisation layers that keep running statistics."""
    return tuple(
        name
        for name, module in victim.model.named_modules()
        if isinstance(module, BATCH_NORM) and module.running_mean is not None
    )


@dataclass(frozen=True, eq=False)
class NormStatistics(Term):
    """Σ_l ‖μ_l(x) − μ*_l‖₂ + ‖σ²_l(x) − σ²*_l‖₂ over the layers of ``targets``.

    It counts as reading the signal, because its targets come from the observation; a null run leaves it out.

    Ref: Valadi et al. 2026, section 4.3 — regularisation toward the client's normalisation statistics
    """

    targets: Mapping[str, Moments]
    reads_signal: ClassVar[bool] = True

    def captures(self, victim: Victim) -> tuple[str, ...]:
        return tuple(self.targets)

    def __call__(self, at: Candidate, /) -> Tensor:
        replay, total = at.require_replay(), at.x.new_zeros(len(at.x))
        for name, wanted in self.targets.items():
            found = layer_moments(at.victim.model.get_submodule(name), replay.inputs(name))
            total = total + norm_per_restart(found.mean - wanted.mean.to(at.x))
            total = total + norm_per_restart(found.var - wanted.var.to(at.x))
        return total
