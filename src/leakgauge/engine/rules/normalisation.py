"""Normalisation layers: z = n · w + b, where n holds the normalised values of each restart separately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.engine.rules.products import plain_types, sum_product
from leakgauge.engine.rules.twice import normalise
from leakgauge.engine.rules.use import Recorder, Use


@dataclass(frozen=True, eq=False)
class ScaleUse(Use):
    """``a`` holds the normalised values, rows outermost. ``kept`` are the dimensions that w and b span."""

    a: Tensor
    kept: tuple[int, ...]

    def _sum_kept(self, values: Tensor) -> Tensor:
        """Sum over all dimensions but the restarts and the kept ones."""
        per_row = values.unflatten(0, (self.rows, -1))
        gone = [d + 1 for d in range(values.dim()) if d not in self.kept]
        return per_row.sum(gone)

    def weight_gradient(self, delta: Tensor) -> Tensor:
        if self.kept == (delta.dim() - 1,) and plain_types(delta, self.a):
            width = delta.shape[-1]
            return sum_product(delta.reshape(self.rows, -1, width), self.a.reshape(self.rows, -1, width))
        return self._sum_kept(delta * self.a)

    def bias_gradient(self, delta: Tensor) -> Tensor:
        return self._sum_kept(delta)


@dataclass(frozen=True, eq=False)
class FixedScaleUse(ScaleUse):
    """z = (a − mean) · inverse · w + b with given statistics: ``a`` is the layer's input; nothing is normalised first."""

    mean: Tensor
    inverse: Tensor

    def weight_gradient(self, delta: Tensor) -> Tensor:
        return (self._sum_kept(delta * self.a) - self.mean * self._sum_kept(delta)) * self.inverse


def _normalise_fixed(
    tape: Recorder, x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalisation by running statistics is one multiply-add per channel, and so are all its derivatives."""
    inverse = (variance + eps).rsqrt()
    factor = inverse if weight is None else inverse * weight
    shift = -mean * factor if bias is None else bias - mean * factor
    shape = (1, -1, *[1] * (x.dim() - 2))
    output = torch.addcmul(shift.view(shape), x, factor.view(shape))
    names = (tape.name_of(weight), tape.name_of(bias))
    if names == (None, None):
        return tape.mark_data(output)
    return tape.tap(output, lambda edge: FixedScaleUse(tape.rows, names[0], names[1], edge, x, (1,), mean, inverse))


def _scale_and_shift(
    tape: Recorder, normal: Tensor, weight: Tensor | None, bias: Tensor | None, kept: tuple[int, ...]
) -> Any:
    """n · w + b with w and b spanning the dimensions ``kept``; tapped if they are plain parameters."""
    tape.mark_data(normal)
    if weight is None and bias is None:
        return normal
    shape = [normal.shape[d] if d in kept else 1 for d in range(normal.dim())]
    if weight is not None and bias is not None:
        output = torch.addcmul(bias.view(shape), normal, weight.view(shape))
    elif weight is not None:
        output = normal * weight.view(shape)
    else:
        output = normal if bias is None else normal + bias.view(shape)
    names = (tape.name_of(weight), tape.name_of(bias))
    if names == (None, None):
        return tape.mark_data(output)
    return tape.tap(output, lambda edge: ScaleUse(tape.rows, names[0], names[1], edge, normal, kept))


def _is_derived(tape: Recorder, *values: Tensor | None) -> bool:
    """Whether one of them was computed from parameters, so only lifting is correct."""
    return any(v is not None and tape.is_parameter(v) and tape.name_of(v) is None for v in values)


def layer_norm(
    tape: Recorder,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if not tape.is_data(input) or _is_derived(tape, weight, bias):
        return NotImplemented
    kept = tuple(range(input.dim() - len(normalized_shape), input.dim()))
    return _scale_and_shift(tape, normalise(input, tuple(normalized_shape), eps), weight, bias, kept)


def rms_norm(
    tape: Recorder,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if not tape.is_data(input) or _is_derived(tape, weight):
        return NotImplemented
    kept = tuple(range(input.dim() - len(normalized_shape), input.dim()))
    return _scale_and_shift(tape, F.rms_norm(input, normalized_shape, None, eps), weight, None, kept)


def group_norm(
    tape: Recorder,
    func: Any,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    if not tape.is_data(input) or _is_derived(tape, weight, bias):
        return NotImplemented
    return _scale_and_shift(tape, F.group_norm(input, num_groups, None, None, eps), weight, bias, (1,))


def instance_norm(
    tape: Recorder,
    func: Any,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not tape.is_data(input) or _is_derived(tape, weight, bias):
        return NotImplemented
    if not use_input_stats and running_mean is not None and running_var is not None:
        return _normalise_fixed(tape, input, running_mean, running_var, weight, bias, eps)
    return _scale_and_shift(tape, F.instance_norm(input, eps=eps), weight, bias, (1,))


def batch_norm(
    tape: Recorder,
    func: Any,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if not tape.is_data(input) or _is_derived(tape, weight, bias):
        return NotImplemented
    if not training and running_mean is not None and running_var is not None:
        return _normalise_fixed(tape, input, running_mean, running_var, weight, bias, eps)
    return _scale_and_shift(tape, normalise_per_restart(input, rows=tape.rows, eps=eps), weight, bias, (1,))


def normalise_per_restart(x: Tensor, *, rows: int, eps: float) -> Tensor:
    """Train-mode batch normalisation of (rows·batch, channels, …) with separate statistics for each restart.

    The restarts become channels, (batch, rows·channels, …); for a batch of one that is just a view.
    """
    split = x.unflatten(0, (rows, -1))  # (R, B, C, ...)
    side_by_side = split.transpose(0, 1).flatten(1, 2)
    normal = F.batch_norm(side_by_side, None, None, training=True, eps=eps)
    return normal.unflatten(1, (rows, -1)).transpose(0, 1).flatten(0, 1)
