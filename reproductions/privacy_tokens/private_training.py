"""DP-SGD of many small LeNets at once, each with its own noise schedule and Poisson-sampled batches, and its ε."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from leakgauge.measures.rdp import sampled_gaussian
from leakgauge.models.privacy_tokens import TokenLeNet

Parameters = dict[str, Tensor]
STRIDES = (2, 2, 1)
ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)


@dataclass(frozen=True)
class Plan:
    """How every model is trained: ``steps`` of Adam on Poisson batches of ``batch`` expected samples, clipped at ``clip``."""

    steps: int
    batch: int
    clip: float = 1.0
    lr: float = 1e-3
    delta: float = 1e-5

    @property
    def room(self) -> int:
        """Samples that are drawn at most: six standard deviations above the expected number."""
        return self.batch + math.ceil(6 * math.sqrt(self.batch))


def epsilon(history: Iterable[tuple[float, int]], *, rate: float, delta: float) -> float:
    """ε at ``delta`` of (noise multiplier, steps) one after another with sampling ``rate``; infinite with a step without noise.

    ε = min over α of Σ ε_t(α) + ln(1/δ)/(α − 1). A sum does not know the order of its terms: neither does ε.

    Ref: Mironov 2017, Propositions 1 and 3 — composition, and from Rényi to (ε, δ)
    """
    used = [(noise, steps) for noise, steps in history if steps]
    if any(noise == 0 for noise, _ in used):
        return math.inf
    return min(
        sum(steps * sampled_gaussian(order, noise=noise, rate=rate) for noise, steps in used)
        + math.log(1 / delta) / (order - 1)
        for order in ORDERS
    )


def constant_noise(budget: float, *, steps: int, rate: float, delta: float) -> float:
    """The multiplier that, used in every step, spends ``budget``."""
    low, high = 0.3, 50.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon([(middle, steps)], rate=rate, delta=delta) > budget else (low, middle)
    return high


def logits(at: Parameters, x: Tensor) -> Tensor:
    """TokenLeNet on one image (C, H, W), its convolutions as matrix products, which batch over samples and models alike."""
    for layer, stride in zip((0, 2, 4), STRIDES, strict=True):
        side = (x.shape[-1] - 1) // stride + 1
        patches = F.unfold(x[None], 5, padding=2, stride=stride)[0]
        out = at[f"body.{layer}.weight"].flatten(1) @ patches + at[f"body.{layer}.bias"][:, None]
        x = out.relu().reshape(-1, side, side)
    return at["fc.weight"] @ x.flatten() + at["fc.bias"]


def clipped_sums(at: Parameters, x: Tensor, y: Tensor, weights: Tensor, clip: float) -> Parameters:
    """Σᵢ wᵢ clip(∇ℓᵢ) of each model: parameters (M, …), x (M, B, C, H, W), y and 0/1 weights (M, B)."""

    def loss(of: Parameters, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(logits(of, image)[None], label[None])

    each = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))(at, x, y)
    lengths = torch.stack([g.flatten(2).square().sum(2) for g in each.values()]).sum(0).sqrt()
    scale = weights * (clip / lengths.clamp_min(1e-30)).clamp_max(1.0)
    return {name: torch.einsum("mb,mb...->m...", scale, g) for name, g in each.items()}


def trained(
    models: Sequence[TokenLeNet],
    noises: Sequence[Callable[[float], float]],
    data: tuple[Tensor, Tensor],
    plan: Plan,
    *,
    seed: int,
    on_step: Callable[[int, list[Parameters]], None],
) -> None:
    """Trains all models together; ``noises[m]`` gives model m's multiplier at a share of the training in [0, 1).

    ``on_step(t, parameters)`` is called before every step and once after the last.
    """
    device = data[0].device
    rng = torch.Generator(device).manual_seed(seed)
    names = [name for name, _ in models[0].named_parameters()]
    stacked = {n: torch.stack([dict(m.named_parameters())[n].detach() for m in models]).to(device) for n in names}
    optimizer = torch.optim.Adam(list(stacked.values()), lr=plan.lr)
    rate = plan.batch / len(data[0])
    count, chance = (torch.full((len(models),), v, device=device) for v in (float(len(data[0])), rate))
    for step in range(plan.steps + 1):
        on_step(step, [{n: t[m] for n, t in stacked.items()} for m in range(len(models))])
        if step == plan.steps:
            return
        order = torch.rand(len(models), len(data[0]), generator=rng, device=device).topk(plan.room).indices
        size = torch.binomial(count, chance, generator=rng)
        weights = (torch.arange(plan.room, device=device) < size[:, None]).float()
        sums = clipped_sums(stacked, data[0][order], data[1][order], weights, plan.clip)
        sigma = torch.tensor([noise(step / plan.steps) for noise in noises], device=device) * plan.clip
        for name, value in stacked.items():
            drawn = torch.randn(value.shape, generator=rng, device=device) * sigma.view(-1, *[1] * (value.dim() - 1))
            value.grad = (sums[name] + drawn) / plan.batch
        optimizer.step()


def loaded(like: TokenLeNet, at: Parameters) -> nn.Module:
    """A copy of the network with these parameters."""
    model = copy.deepcopy(like)
    model.load_state_dict({name: value.detach().clone() for name, value in at.items()})
    return model.to(next(iter(at.values())).device)
