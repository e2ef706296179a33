"""From the samples separated at the head down through the fully connected layers beneath it: the inputs of each, sample by sample.

For h_k = σ(z_k), z_k = A a_k + c beneath a head W, the gradient at z_k is δ_k = σ'(z_k) ∘ Wᵀ d_k. A client shares ∂A = 1/B Σ_k δ_k a_kᵀ and
∂c = 1/B Σ_k δ_k. With h_k and d_k known, δ_k is known too, and the (a_k, 1) of n samples are the solution of a linear system with as many
equations for each entry as the layer has units:

    (a, 1) = (δᵀ)⁺ B (∂A, ∂c)

Its last column is 1 but for the error of δ_k's length, which is greatest where d_k is faint; (a_k, s_k) / s_k is free of it. The a_k give
z_k and with it σ'(z_k) once more, so the system is solved until that changes nothing. Then the layer beneath is next.

Noise of the shared gradient reaches (a_k, s_k) times ‖row k of (δᵀ)⁺‖. How large it is the equations tell that are not needed, of which
there are F − n for each of D + 1 entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.engine.reference import inputs_of

ROUNDS, CONVERGED = 10, 1e-10
"""How often σ' is computed again from what it gave, at most, and the relative change from which on it is not."""
AGREES = 1e-2
"""Largest share of a layer's gradient that its samples may leave unexplained."""
INEXACT = 0.02
"""Largest difference of s_k from 1, and of an input from that of the round before, relative to its length."""
LIKELY = 6.0
"""By how many times its expected length the error of a sample counts."""
ZERO = 1e-4
"""Features below this share of a sample's largest are zero: behind a ReLU they have no slope."""
PROBES = 4

_INVERSES: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    torch.relu: lambda h: torch.where(h > ZERO * h.amax(1, keepdim=True), h, -torch.ones_like(h)),
    torch.tanh: lambda h: h.clamp(-1 + 1e-7, 1 - 1e-7).atanh(),
    torch.sigmoid: lambda h: h.clamp(1e-7, 1 - 1e-7).logit(),
    F.leaky_relu: lambda h: torch.where(h > 0, h, 100 * h),
    torch.clone: lambda h: h,  # no activation
}
"""Activations σ, and some z with σ(z) = h and the slope there."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What enters ``layer``, (n, D), for each of the separated samples, and about how far it is off, relative to its length."""

    layer: str
    values: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class Link:
    """A fully connected layer beneath the head, and the activation between its output and the input of the next one."""

    name: str
    activation: Callable[[Tensor], Tensor]


def walk_down(
    victim: Victim,
    head: str,
    links: Sequence[Link],
    shared: Mapping[str, Tensor],
    outputs: Tensor,
    features: Tensor,
    *,
    scale: int = 1,
) -> Inputs:
    """The inputs of the lowest fully connected layer that can be reached from the ``head`` through the ``links`` beneath it.

    ``outputs`` (n, C) and ``features`` (n, F) are the gradients at the output and the inputs of the head of the separated samples;
    ``scale`` times ``shared`` is the sum of their gradients by name. What enters the head is returned where no layer can be passed.
    """
    if not len(outputs):
        return Inputs(head, features, features.new_zeros(0))
    at_head = layer_inputs(outputs, _shared(shared, head, scale))
    apart = (at_head.inputs - features).norm(dim=1) / features.norm(dim=1)
    wrong = (at_head.error <= INEXACT) & (apart > at_head.error)  # scores of next to zero fix no features
    error = torch.where(wrong, at_head.error, torch.maximum(at_head.error, apart))
    reached = Inputs(head, torch.where(wrong[:, None], at_head.inputs, features), error)
    slope = outputs @ _double(victim.model.get_parameter(f"{head}.weight"))
    for link in links:
        if f"{link.name}.weight" not in shared or f"{link.name}.bias" not in shared:
            break
        layer = victim.model.get_submodule(link.name)
        assert isinstance(layer, nn.Linear)
        weight, bias = _double(layer.weight), _double(layer.bias)
        passed = _pass(link, weight, bias, _shared(shared, link.name, scale), slope, reached.values)
        if passed is None:
            break
        reached, slope = passed
    return reached


def _shared(shared: Mapping[str, Tensor], layer: str, scale: int) -> Tensor:
    """B (∂A, ∂c)."""
    return scale * torch.cat((_double(shared[f"{layer}.weight"]), _double(shared[f"{layer}.bias"])[:, None]), 1)


def _pass(
    link: Link, weight: Tensor, bias: Tensor, shared: Tensor, slope: Tensor, outputs: Tensor
) -> tuple[Inputs, Tensor] | None:
    """The inputs of a layer and the gradients there, from the gradients ``slope`` (n, F) at σ's ``outputs`` (n, F); None where the
    shared gradient, (F, D + 1), disagrees, or where its rounding decides."""
    z, before = _INVERSES[link.activation](outputs), slope.new_zeros(len(slope), len(weight.T))
    rounds = 0
    while True:
        delta = _through(link.activation, z, slope)
        if not bool(delta.isfinite().all()) or int(torch.linalg.matrix_rank(delta)) < len(delta):
            return None
        found = layer_inputs(delta, shared)
        change = (found.inputs - before).norm(dim=1) / found.inputs.norm(dim=1)
        rounds += 1
        if rounds == ROUNDS or float(change.max()) <= CONVERGED:
            break
        z, before = found.inputs @ weight.T + bias, found.inputs
    if not (found.left <= AGREES and float(torch.maximum(change, found.off).max()) <= INEXACT):
        return None
    return Inputs(link.name, found.inputs, torch.maximum(change, found.error)), delta @ weight


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """Solution of the linear system of one layer."""

    inputs: Tensor
    """a, (n, D)."""
    off: Tensor
    """How far s is from 1, (n,)."""
    expected: Tensor
    """Length of what the gradient's noise makes of a, relative to its own, (n,)."""
    left: float
    """Share of the gradient that is left unexplained."""

    @property
    def error(self) -> Tensor:
        return torch.maximum(self.off, LIKELY * self.expected)


def layer_inputs(delta: Tensor, shared: Tensor) -> LayerInputs:
    """The inputs whose outer products with ``delta`` (n, F) make the ``shared`` gradient (F, D + 1)."""
    inverse = torch.linalg.pinv(delta.T)
    solved = inverse @ shared
    left, spare = (delta.T @ solved - shared).norm(), (delta.shape[1] - len(delta)) * shared.shape[1]
    noise = left / spare**0.5 if spare > 0 else left.new_tensor(torch.inf)
    found = solved[:, :-1] / solved[:, -1:]
    expected = inverse.norm(dim=1) * noise * found.shape[1] ** 0.5 / found.norm(dim=1)
    return LayerInputs(found, (solved[:, -1] - 1).abs(), expected, float(left / shared.norm()))


def _through(activation: Callable[[Tensor], Tensor], z: Tensor, slope: Tensor) -> Tensor:
    """σ'(z) ∘ slope."""
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        return torch.autograd.grad(activation(at), at, slope)[0]


def _double(value: Tensor) -> Tensor:
    return value.detach().double().cpu()


def links_beneath(victim: Victim, head: str) -> list[Link]:
    """The fully connected layers beneath the ``head``, from above, down to the first that is joined to the next one by something else."""
    linear = [name for name, module in victim.model.named_modules() if isinstance(module, nn.Linear)]
    noise = victim.to_input(victim.space.start(PROBES, torch.Generator().manual_seed(0)))
    entered = inputs_of(victim, linear, noise)
    order = [name for name, value in entered.items() if value.dim() == 2 and len(value) == PROBES]
    own = {
        name for name, _ in victim.model.named_parameters(remove_duplicate=False)
    }  # without those that others make up
    links: list[Link] = []
    above = head
    for name in reversed(order[: order.index(head)] if head in order else []):
        layer = victim.model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        if not {f"{name}.weight", f"{name}.bias"} <= own or layer.out_features != entered[above].shape[1]:
            break
        with torch.no_grad():
            z, h = layer(entered[name]).double().cpu(), _double(entered[above])
        fits = [one for one in _INVERSES if torch.allclose(one(z), h, rtol=1e-3, atol=1e-5 * float(z.abs().max()))]
        if not fits:
            break
        links.append(Link(name, fits[0]))
        above = name
    return links
