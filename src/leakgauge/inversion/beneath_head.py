"""From the samples told apart at the head down through the fully connected layers beneath it: the inputs of each, sample by sample.

For h_k = σ(z_k), z_k = A a_k + c beneath a head W, the gradient at z_k is δ_k = σ'(z_k) ∘ Wᵀ d_k. A client shares ∂A = 1/B Σ_k δ_k a_kᵀ and
∂c = 1/B Σ_k δ_k. With h_k and d_k known, δ_k is known too, and the (a_k, 1) of n samples are the solution of a linear system with as many
equations for each entry as the layer has units:

    (a, 1) = (δᵀ)⁺ B (∂A, ∂c)

Its last column is 1 but for the error of δ_k's length, which is greatest where d_k is faint; (a_k, s_k) / s_k is free of it. The a_k give
z_k and with it σ'(z_k) once more, so the system is solved again. Then the layer beneath is next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import capturing

ROUNDS = 3
"""How often σ' is computed again from what it gave."""
AGREES = 1e-2
"""Largest share of a layer's gradient that its samples may leave unexplained."""
INEXACT = 0.02
"""Largest difference of s_k from 1, and of an input from that of the round before, relative to its length."""
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
    """What enters ``layer``, (n, D), for each of the samples that were told apart, and about how far it is off, relative to its length."""

    layer: str
    values: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class Link:
    """A fully connected layer beneath the head, and the activation between its output and the input of the next one."""

    name: str
    weight: Tensor
    bias: Tensor
    activation: Callable[[Tensor], Tensor]


def walk_down(
    victim: Victim,
    head: str,
    links: Sequence[Link],
    shared: Mapping[str, Tensor],
    outputs: Tensor,
    features: Tensor,
) -> Inputs:
    """The inputs of the lowest fully connected layer that can be reached from the ``head`` through the ``links`` beneath it.

    ``outputs`` (n, C) and ``features`` (n, F) are the gradients at the output and the inputs of the head of the samples that were told
    apart; ``shared`` is the sum of their gradients by name. What enters the head is returned where no layer can be passed.
    """
    reached = Inputs(head, features, features.new_full((len(features),), torch.inf))
    slope = outputs @ _double(victim.model.get_parameter(f"{head}.weight"))
    for link in links if len(outputs) else ():
        weight, bias = shared.get(f"{link.name}.weight"), shared.get(f"{link.name}.bias")
        if weight is None or bias is None:
            break
        passed = _pass(link, torch.cat((_double(weight), _double(bias)[:, None]), 1), slope, reached.values)
        if passed is None:
            break
        reached, slope = passed[0], passed[1]
    return reached


def _pass(link: Link, shared: Tensor, slope: Tensor, outputs: Tensor) -> tuple[Inputs, Tensor] | None:
    """The inputs of a layer and the gradients there, from the gradients ``slope`` (n, F) at σ's ``outputs`` (n, F); None where the
    shared gradient, (F, D + 1), disagrees, or where its rounding decides."""
    z = _INVERSES[link.activation](outputs)
    rounds: list[tuple[Tensor, Tensor]] = []
    for _ in range(ROUNDS):
        delta = _through(link.activation, z, slope)
        if not bool(delta.isfinite().all()) or int(torch.linalg.matrix_rank(delta)) < len(delta):
            return None
        solved = torch.linalg.pinv(delta.T) @ shared
        rounds.append((delta, solved))
        z = _inputs(solved) @ link.weight.T + link.bias
    (_, before), (delta, solved) = rounds[-2:]
    found = _inputs(solved)
    off = float((delta.T @ solved - shared).norm() / shared.norm())
    error = torch.maximum((found - _inputs(before)).norm(dim=1) / found.norm(dim=1), (solved[:, -1] - 1).abs())
    if not (off <= AGREES and float(error.max()) <= INEXACT):
        return None
    return Inputs(link.name, found, error), delta @ link.weight


def _inputs(solved: Tensor) -> Tensor:
    """a of s (a, 1)."""
    return solved[:, :-1] / solved[:, -1:]


def _through(activation: Callable[[Tensor], Tensor], z: Tensor, slope: Tensor) -> Tensor:
    """σ'(z) ∘ slope."""
    at = z.detach().requires_grad_()
    return torch.autograd.grad(activation(at), at, slope)[0]


def _double(value: Tensor) -> Tensor:
    return value.detach().double().cpu()


def links_beneath(victim: Victim, head: str) -> list[Link]:
    """The fully connected layers beneath the ``head``, from above, down to the first that is joined to the next one by something else."""
    linear = [name for name, module in victim.model.named_modules() if isinstance(module, nn.Linear)]
    noise = victim.to_input(victim.space.start(PROBES, torch.Generator().manual_seed(0)))
    with torch.no_grad(), private_randomness(0, victim.device), capturing(victim.model, linear) as entered:
        victim(noise)
    order = [name for name, value in entered.items() if value.dim() == 2 and len(value) == PROBES]
    links: list[Link] = []
    above = head
    for name in reversed(order[: order.index(head)] if head in order else []):
        layer = victim.model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        if layer.bias is None or layer.out_features != entered[above].shape[1]:
            break
        weight, bias = _double(layer.weight), _double(layer.bias)
        z, h = _double(entered[name]) @ weight.T + bias, _double(entered[above])
        fits = [one for one in _INVERSES if torch.allclose(one(z), h, rtol=1e-3, atol=1e-5 * float(z.abs().max()))]
        if not fits:
            break
        links.append(Link(name, weight, bias, fits[0]))
        above = name
    return links
