"""The gradient at the model's output, read from the head's bias: an attack that knows it need not replay the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.channels.dpsgd import DPSGD
from leakgauge.channels.facts import is_gradient
from leakgauge.channels.output import Along
from leakgauge.core import Observation, Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.errors import Inapplicable
from leakgauge.families import find_roles
from leakgauge.inversion.defended import useful


@dataclass(frozen=True)
class OutputGradient:
    """A rule for labels that gives d = ∂loss/∂z at the output z = W h + b of one sample: ∂loss/∂b = d, scaled to length 1.

    It does so even where labels are revealed.

    With :class:`~leakgauge.channels.output.Along` in place of the loss, the replay of the truth then points where the observed gradient
    does, even where the network is so sure of its class that p − y is rounded: the client's own rounding is in d.
    """

    def __call__(self, victim: Victim, seen: Observation, /, *, rng: torch.Generator) -> Tensor:
        return output_gradient(victim, seen)[None]


def output_gradient(victim: Victim, seen: Observation) -> Tensor:
    """d (C,) of length 1 for an observation of one sample; ``Inapplicable`` where it cannot be read."""
    if seen.size != 1:
        raise Inapplicable("the gradient at the output is the bias's gradient only for one sample")
    if not (
        is_gradient(seen.channel, victim.mode) or isinstance(seen.channel, DPSGD)
    ):  # clipping one sample only scales
        raise Inapplicable("the gradient at the output is read from a gradient, but the client sends something else")
    name = f"{_last_layer(victim)}.bias"
    if name not in seen.signal:
        raise Inapplicable(f"not shared: {name}")
    found = seen.signal[name].detach().float()
    if found.dim() != 1 or not bool(found.any()):
        raise Inapplicable(f"the gradient of {name} is zero")
    scaled = found / found.abs().max()  # squares of p − y may be too small for float32
    return scaled / scaled.norm()


def read_targets(victim: Victim, seen: Observation, x: Tensor) -> Tensor | None:
    """y with ∂loss(z, y)/∂z = ∂loss/∂b at the output z of the one sample ``x``; None where the loss does not determine it.

    The gradient of a squared error or a binary cross entropy is affine in the targets, g(y) = g(0) + J y, so y is the solution of a linear
    system: y = z − K/2 · ∂b for the mean squared error of K outputs, y = σ(z) − K · ∂b for the binary cross entropy.
    """
    with torch.no_grad(), private_randomness(0, victim.device):
        output = victim(x)
    sent = seen.signal[f"{_last_layer(victim)}.bias"].to(output)

    def slope(y: Tensor) -> Tensor:
        with torch.enable_grad():
            z = output.detach().requires_grad_()
            return torch.autograd.grad(victim.loss(z, y.view_as(z)), z, create_graph=True)[0].flatten()

    zero = torch.zeros(output.numel(), device=output.device, dtype=output.dtype)
    jacobian = torch.autograd.functional.jacobian(slope, zero)
    assert isinstance(jacobian, Tensor)
    system = jacobian.double().cpu()
    if int(torch.linalg.matrix_rank(system)) < len(zero):  # as of an absolute error, which only shows the side
        return None
    found = torch.linalg.solve(system, (sent - slope(zero).detach()).double().cpu()).to(zero)
    left = slope(found).detach() - sent
    return found.view_as(output) if float(left.norm()) <= AGREES * float(sent.norm()) else None


AGREES = 1e-3
"""How far the gradient at the targets that were read may be from the one that was sent, relative to its length."""


def _last_layer(victim: Victim) -> str:
    """The linear layer whose output is the model's output."""
    name = find_roles(victim.model).head
    if name is None:
        raise Inapplicable("the model has no linear head")
    made: list[object] = []
    still = replace(victim, mode="eval")

    def keep(module: nn.Module, inputs: object, output: object) -> None:
        made.append(output)

    handle = still.model.get_submodule(name).register_forward_hook(keep)
    try:
        with torch.no_grad():
            output = still(still.to_input(still.space.start(1, torch.Generator().manual_seed(0))))
    finally:
        handle.remove()
    own = made[0] if len(made) == 1 else None
    if (
        not isinstance(own, Tensor)
        or not isinstance(output, Tensor)
        or output.dim() != 2
        or not torch.equal(own, output)
    ):
        raise Inapplicable(f"the output of {name} is not the output of the model")
    return name


def along_output(victim: Victim, seen: Sequence[Observation]) -> Victim | None:
    """The victim with a loss along the gradient at the output; None where that cannot be read from all observations."""
    if any(useful(one.defenses) for one in seen):  # the bias is not what the client computed
        return None
    try:
        for one in seen:
            output_gradient(victim, one)
    except Inapplicable:
        return None
    return replace(victim, loss=Along())
