"""Analytic recovery of the input of a fully connected first layer."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.attacks.certificate import certify
from leakgauge.attacks.found_images import valid_range
from leakgauge.channels.facts import require_gradients, require_shared
from leakgauge.core import Observation, Reconstruction, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.examples import example
from leakgauge.engine import Observed
from leakgauge.engine.reference import inputs_of
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles
from leakgauge.inversion.labels import LabelRule, batch_size, infer_labels, labels_or_none

PROBES = 4
"""Samples of noise for looking at the layer's input; more than one, because of batch normalisation in train mode."""

AGREEMENT = 1e-3
"""How far the layer's input may be from the image, relative to its length."""


@dataclass(frozen=True)
class Linear:
    """The attack made by :func:`linear`."""

    labels: LabelRule

    @plain_defaults()
    def __call__(self, victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
        began = time.perf_counter()
        if batch_size(seen) != 1:
            raise Inapplicable(f"analytic recovery needs one sample, but the rows of this gradient mix {seen.size}")
        name, weight, bias = first_layer_gradients(victim, seen, seed=seed)
        flat = input_of_linear(weight, bias)
        x = flat.view(1, *victim.space.shape)
        labels = labels_or_none(self.labels, victim, seen, seed=seed)
        dark, light = valid_range(victim, x)
        error = error_of_linear(weight, bias, flat) / float((light - dark).min())
        return Reconstruction.single(
            victim.space.project(x),
            labels,
            made_by=repr(self),
            began=began,
            notes=(f"closed form on {name}",),
            certified=certify(victim, seen, x, labels, error=error, seed=seed),
        )


def input_of_linear(weight: Tensor, bias: Tensor) -> Tensor:
    """x with ∂W = δ xᵀ (``weight``) and ∂b = δ (``bias``): least squares over all rows, x = ∂Wᵀ∂b / ‖∂b‖².

    Ref: Phong et al. 2018, section III — input of a layer from the gradients of weight and bias
    """
    square = torch.dot(bias.double(), bias.double())
    if square == 0:
        raise Inapplicable("the bias gradient of the first layer is zero, so its input cannot be computed by division")
    return ((weight.double().T @ bias.double()) / square).to(weight.dtype)


def error_of_linear(weight: Tensor, bias: Tensor, x: Tensor) -> float:
    """Expected root mean square error of an entry of ``x``: ‖∂W − ∂b xᵀ‖ / (‖∂b‖ √d), what of the gradient no single input explains."""
    left = weight.double() - torch.outer(bias.double(), x.double())
    return float(left.norm() / bias.double().norm()) / math.sqrt(len(x))


def first_layer_gradients(victim: Victim, seen: Observation, *, seed: int) -> tuple[str, Tensor, Tensor]:
    """Name of the fully connected layer that reads the image itself, and the gradients of its weight and bias; refuses other models."""
    require_gradients(seen.channel)
    signal = Observed.check(seen.signal, victim).signal
    name = _first_linear(victim)
    _require_raw_input(victim, name, seed=seed)
    return name, require_shared(signal, f"{name}.weight"), require_shared(signal, f"{name}.bias")


def _first_linear(victim: Victim) -> str:
    name = find_roles(victim.model).first_layer
    layer = None if name is None else victim.model.get_submodule(name)
    if name is None or not isinstance(layer, nn.Linear):
        raise Inapplicable(
            f"analytic recovery needs a Linear first layer on the input, but this is a {type(layer).__name__}"
        )
    if layer.in_features != math.prod(victim.space.shape):
        raise Inapplicable(
            f"the first linear layer {name} takes {layer.in_features} values, but the input has {math.prod(victim.space.shape)}"
        )
    return name


def _require_raw_input(victim: Victim, name: str, *, seed: int) -> None:
    """Runs noise through the public model: the layer's input must be the image itself, value by value."""
    noise = victim.to_input(victim.space.start(PROBES, torch.Generator().manual_seed(seed)))
    entered = inputs_of(victim, (name,), noise, seed=seed).get(name)
    if entered is None or entered.numel() != noise.numel():
        raise Inapplicable(f"the first linear layer {name} does not take one whole image at a time")
    off = float((entered.reshape(PROBES, -1) - noise.flatten(1)).norm() / noise.norm())
    if not off < AGREEMENT:
        raise Inapplicable(
            f"the first linear layer {name} does not read the image itself: something changes it first, such as a normalisation, "
            "dropout or another order of the pixels"
        )


@example("mlp")
@checked
def linear() -> Linear:
    """Phong et al. 2018: for y = W x + b, row i of ∂W is ∂b_i · x, so x can be computed exactly.

        x̂ = ∂Wᵀ ∂b / ‖∂b‖²

    Needs a fully connected first layer with a bias that reads the image itself, both gradients shared, and one sample. A weight
    update after one step works too: its factor −η cancels.

    Deviations: all rows are used by least squares instead of one row's quotient, so a single small ∂b_i is harmless.

    Ref: Phong et al. 2018, section III — analytic recovery
    """
    return Linear(labels=infer_labels())
