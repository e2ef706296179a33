"""How many samples of an update have a property, from the gradient of its last layer; learned on batches that the adversary adds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels.gradient import for_each_sample, gradient_at
from leakgauge.channels.twice import twice_differentiable
from leakgauge.core import Signal, Targets, Victim
from leakgauge.core.randomness import private_randomness

MOST = 2000
"""Samples whose own gradients are taken."""
AT_ONCE = 1 << 24
"""Numbers of the weight's gradients that are held at once."""
BATCHES, EPOCHS, STEP, HIDDEN = 10_000, 12, 200, 64
PENALTY = 0.1
"""Of the direction, relative to the mean squared length of a standardised input."""
ADDS_UP = 0.95
"""Least cosine between a real update and the mean of its samples' gradients, or its opposite for a change of weights."""
Draw = Callable[[int], Tensor]


@dataclass(frozen=True, eq=False)
class PropertyCounts:
    """A number for an update that grows with how many of its samples have the property.

    The last layer reads h_i and has the gradient δ_i at its output, so ∂W = mean δ_i h_iᵀ and ∂b = mean δ_i. Along the direction ``v`` in
    which samples with the property differ from others, r = ∂W v − (v·h̄) ∂b = mean δ_i t_i with t_i = v·(h_i − h̄): what each class adds
    to ∂b, and how much of it has the property. A small network reads the count from (r, ∂b). No linear probe of ∂W can: which sum over the
    classes shows the count depends on how many samples of each class are in the batch, which ∂b shows.
    """

    weight: str
    bias: str
    v: Tensor
    offset: Tensor
    mean: Tensor
    deviation: Tensor
    network: nn.Module

    def __call__(self, signal: Signal) -> Tensor:
        weight, bias = (signal[name].detach().float().cpu() for name in (self.weight, self.bias))
        with torch.no_grad():
            seen = torch.cat([weight @ self.v - self.offset * bias, bias])
            return self.network((seen - self.mean) / self.deviation)


def fit_counts(
    victim: Victim,
    layer: tuple[str, str],
    x: Tensor,
    y: Tensor,
    has: Tensor,
    draw: Draw,
    send: Callable[[Tensor], Signal],
    *,
    seed: int,
) -> PropertyCounts | None:
    """Fits :class:`PropertyCounts` to ``layer`` (the names of its weight and bias) on the adversary's own samples.

    The gradient of a batch is the mean of its samples' gradients, so ``BATCHES`` made-up batches cost one pass over the samples.
    ``draw(kind)`` gives the places of one batch, ``send`` what a batch of them really sends. None where that is not the mean of δ_i h_iᵀ
    up to a factor, or not sent (several local steps with a large rate, statistics of the batch, strong noise, a layer that reads many
    tokens); one batch shows that.
    """
    trial = draw(1)
    sent = send(trial)
    if any(name not in sent for name in layer):
        return None
    tried, deltas = own_gradients(victim, layer, x[trial], y[trial], seed=seed)
    real, alone = sent[layer[0]].detach().float().cpu(), deltas.T @ tried / len(trial)
    scale = float((real * alone).sum() / alone.square().sum().clamp_min(1e-30))
    if not abs(float(F.cosine_similarity(real.flatten(), alone.flatten(), 0))) > ADDS_UP:
        return None
    inputs, deltas = own_gradients(victim, layer, x, y, seed=seed)
    deltas *= scale
    half = torch.arange(len(has)) % 2 == 0
    own = torch.zeros_like(deltas)
    for fitted in (half, ~half):  # a sample's own projection is along a direction that was fitted without it
        v, offset = _direction(inputs[fitted], has[fitted])
        own[~fitted] = deltas[~fitted] * (inputs[~fitted] @ v - offset)[:, None]
    v, offset = _direction(inputs, has)
    singles = torch.cat([own, deltas], 1)
    kinds = torch.arange(BATCHES) % 2
    batches = torch.stack([singles[draw(int(kind))].mean(0) for kind in kinds])
    mean, deviation = batches.mean(0), batches.std(0).clamp_min(1e-30)
    network = _fit((batches - mean) / deviation, kinds, seed=seed)
    return PropertyCounts(*layer, v, offset, mean, deviation, network)


def own_gradients(victim: Victim, layer: tuple[str, str], x: Tensor, y: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """h = ∂Wᵀ∂b / ‖∂b‖² (N, inputs) and δ = ∂b (N, outputs) of each sample alone: where the layer reads one vector, ∂W = δ hᵀ, so the
    gradients of the weight are not kept."""
    every, buffers = victim.parameters(), victim.buffers()

    def alone(x: Tensor, y: Targets) -> dict[str, Tensor]:
        def loss(at: dict[str, Tensor]) -> Tensor:
            with twice_differentiable(victim.model):
                return victim.loss(victim(x, parameters={**every, **at}, buffers=buffers), y)

        return gradient_at({name: every[name] for name in layer}, loss)

    inputs, deltas = list[Tensor](), list[Tensor]()
    with private_randomness(seed, victim.device):
        for part in torch.arange(len(x)).split(max(1, min(64, AT_ONCE // every[layer[0]].numel()))):
            one = for_each_sample(alone, victim.to_input(x[part]), y[part].to(victim.device))
            weight, delta = (one[name].detach().float() for name in layer)
            read = torch.einsum("nkj,nk->nj", weight, delta) / delta.square().sum(1, keepdim=True).clamp_min(1e-30)
            inputs.append(read.cpu())
            deltas.append(delta.cpu())
    return torch.cat(inputs), torch.cat(deltas)


def _direction(inputs: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """v of t = v·(h − h̄) by ridge regression of ±1 on the standardised inputs h (N, d), in its dual form, and v·h̄."""
    mean, deviation = inputs.mean(0), inputs.std(0)
    z = torch.where(deviation > 0, (inputs - mean) / deviation.clamp_min(1e-30), 0.0)
    targets = 2.0 * has - 1
    products = z @ z.T
    damped = products + PENALTY * products.diagonal().mean().clamp_min(1e-30) * torch.eye(len(z))
    v = z.T @ torch.linalg.solve(damped, targets - targets.mean())
    v = torch.where(deviation > 0, v / deviation.clamp_min(1e-30), 0.0)
    return v, v @ mean


def _fit(batches: Tensor, kinds: Tensor, *, seed: int) -> nn.Module:
    with private_randomness(seed, torch.device("cpu")):
        network = nn.Sequential(
            nn.Linear(batches.shape[1], HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN // 2), nn.GELU(), nn.Linear(HIDDEN // 2, 1)
        )  # fmt: skip
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    steps = EPOCHS * -(-len(batches) // STEP)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    with torch.enable_grad():
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(batches), generator=rng).split(STEP):
                loss = F.binary_cross_entropy_with_logits(network(batches[rows])[:, 0], kinds[rows].float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return network.requires_grad_(False)
