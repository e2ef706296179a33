"""The client's check of a model it received: which samples of its batch would be isolated in the update?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.channels.dpsgd import require_separate_samples
from leakgauge.channels.gradient import each_gradient
from leakgauge.core import Targets, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.running import refuse_samples, refuse_targets
from leakgauge.errors import Inapplicable
from leakgauge.errors.checked import checked

PURE = 0.999
"""A row belongs to one sample if that sample has at least this share of the summed norms."""
LEAST = 1e-6
"""Norm of a row, relative to the tensor's largest, below which it is too small to read."""


@dataclass(frozen=True)
class Place:
    """Where a sample is isolated: in ``rows`` of the ``of`` rows (or differences of neighbouring rows) of a tensor."""

    tensor: str
    rows: int
    of: int


@dataclass(frozen=True)
class Isolated:
    """For each sample of a batch the places where it is isolated; empty for a sample that is mixed with others everywhere."""

    places: tuple[tuple[Place, ...], ...]

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples that are isolated somewhere."""
        return tuple(i for i, found in enumerate(self.places) if found)


@checked
@plain_defaults()
def find_isolated(victim: Victim, x: Tensor, y: Targets) -> Isolated:
    """Samples that dominate a row of the update, or a difference of two neighbouring rows.

        ‖g_i,r‖ ≥ 0.999 · Σ_j ‖g_j,r‖        for the row r of a weight, with g_j the gradient of sample j

    An adversary with the update can read such a sample as if it had been sent alone: its input from a linear layer (imprint, trap
    weights), or by inverting a single sample (fishing). This also happens with an honest model: in a wide first layer, or if all
    samples but one are fitted well. A sample that is isolated nowhere is not therefore safe; it is only not exposed in this way.
    If samples act on each other (batch normalisation in train mode), g_j is what reaches a weight through the activations of sample j.
    Memory: the gradients of all samples at once. The true data is used here, because it is the client's own.
    """
    refuse_samples(x, victim.space.shape, who="find_isolated")
    refuse_targets(lambda: victim(x), victim.loss, x, y)
    each = (
        _each_by_layer(victim, x, y)
        if _mixes_samples(victim)
        else each_gradient(victim, x, y, parameters=victim.parameters(), buffers=victim.buffers())
    )
    broken = [name for name, rows in each.items() if not bool(rows.isfinite().all())]
    if broken:
        raise Inapplicable(
            f"the gradient of {broken[0]} is not finite in {victim.mode} mode, so nothing can be said about it"
        )
    places: list[list[Place]] = [[] for _ in range(len(x))]
    for name, rows in each.items():
        if rows.dim() < 3:  # a bias reveals no input
            continue
        lengths = torch.cat([part.norm(dim=2) for part in _rows(rows.detach().double().flatten(2))], 1)
        together = lengths.sum(0)
        counts = together > LEAST * together.max()
        owner, pure = lengths.argmax(0), counts & (lengths.amax(0) >= PURE * together)
        for i in owner[pure].unique().tolist():
            places[i].append(Place(name, int((pure & (owner == i)).sum()), len(together)))
    return Isolated(tuple(map(tuple, places)))


def _mixes_samples(victim: Victim) -> bool:
    try:
        require_separate_samples(victim)
    except Inapplicable:
        return True
    return False


def _each_by_layer(victim: Victim, x: Tensor, y: Targets) -> dict[str, Tensor]:
    """The share of each sample in the batch's gradient of every layer's weight: Σ over its uses of δ_j · ∂output_j/∂weight.

    δ_j is the gradient of the loss of the whole batch by the layer's output for sample j; the shares add up to the gradient.
    """
    uses: list[tuple[str, nn.Module, Tensor, Tensor]] = []

    def remember(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if len(inputs) != 1 or len(inputs[0]) != len(x) or len(output) != len(x):
            raise Inapplicable(f"{name} does not take one row per sample, so the shares of samples are unknown")
        uses.append((name, module, inputs[0].detach(), output))

    weights = {name for name, p in victim.parameters().items() if p.dim() > 1}
    weighted = [(n, m) for n, m in victim.model.named_modules() if f"{n}.weight" in weights]
    hooks = [m.register_forward_hook(lambda m, a, b, n=n: remember(n, m, a, b)) for n, m in weighted]
    try:
        at = {name: p.detach().requires_grad_() for name, p in victim.parameters().items()}
        with torch.enable_grad():
            loss = victim.loss(victim(x, parameters=at, buffers=victim.buffers()), y)
    finally:
        for hook in hooks:
            hook.remove()
    deltas = torch.autograd.grad(loss, [output for *_, output in uses], allow_unused=True)
    shares: dict[str, Tensor] = {}
    for (name, module, a, _), delta in zip(uses, deltas, strict=True):
        key = f"{name}.weight"
        if delta is None or key not in at:
            continue
        with torch.enable_grad():
            weight = at[key]
            rows = [
                torch.autograd.grad(
                    functional_call(module, {"weight": weight}, (a[i : i + 1],)), weight, delta[i : i + 1]
                )[0]
                for i in range(len(x))
            ]
        shares[key] = shares.get(key, torch.zeros((), dtype=weight.dtype, device=weight.device)) + torch.stack(rows)
    return shares


def _rows(each: Tensor) -> Iterator[Tensor]:
    """The rows (samples, rows, entries), then the differences of neighbours: an imprint sums all samples above a cut."""
    yield each
    yield each[:, :-1] - each[:, 1:]
