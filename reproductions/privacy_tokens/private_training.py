"""DP-SGD of many small LeNets at once, each with its own noise schedule and Poisson-sampled batches, and its ε."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.measures.rdp import sampled_gaussian
from reproductions.common.networks.privacy_tokens import TokenLeNet

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
    if not used:  # nothing was sent, nothing is spent; the conversion to (ε, δ) would not be zero
        return 0.0
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


def clipped_sums(at: Parameters, x: Tensor, y: Tensor, weights: Tensor, clip: float) -> Parameters:
    """Σᵢ wᵢ clip(∇ℓᵢ) of each model: parameters (M, …), x (M, B, C, H, W), y and 0/1 weights (M, B).

    Convolutions are matrix products with the patches of their input, so one pass gives δ of every layer, model and sample,
    and a sample's gradient is δ times its patches. (Nested vmap over convolutions is many times slower.)
    """
    layers: list[tuple[str, Tensor, Tensor]] = []
    with torch.enable_grad():
        for layer, stride in zip((0, 2, 4), STRIDES, strict=True):
            side = (x.shape[-1] - 1) // stride + 1
            patches = _patches(x, stride)
            weight, bias = at[f"body.{layer}.weight"].flatten(2), at[f"body.{layer}.bias"]
            out = torch.einsum("mok,mbks->mbos", weight, patches) + bias[:, None, :, None]
            out = out if out.requires_grad else out.requires_grad_()  # the first layer's: nothing before it is moved
            layers.append((f"body.{layer}", patches, out))
            x = out.relu().unflatten(-1, (side, side))
        flat = x.flatten(2)
        logits = torch.einsum("mok,mbk->mbo", at["fc.weight"], flat) + at["fc.bias"][:, None]
        layers.append(("fc", flat.unsqueeze(-1), logits))
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        deltas = torch.autograd.grad(loss, [out for _, _, out in layers])
    each: Parameters = {}
    for (name, patches, _), delta in zip(layers, deltas, strict=True):
        delta = delta if delta.dim() == 4 else delta.unsqueeze(-1)
        gradient = torch.einsum("mbos,mbks->mbok", delta, patches.detach())
        each[f"{name}.weight"] = gradient.unflatten(-1, at[f"{name}.weight"].shape[2:])
        each[f"{name}.bias"] = delta.sum(-1)
    lengths = torch.stack([g.flatten(2).square().sum(2) for g in each.values()]).sum(0).sqrt()
    scale = weights * (clip / lengths.clamp_min(1e-30)).clamp_max(1.0)
    return {name: torch.einsum("mb,mb...->m...", scale, each[name]) for name in at}


def _patches(x: Tensor, stride: int) -> Tensor:
    """All 5×5 patches (M, B, C·25, places) of images (M, B, C, H, W) with two rows of zeros around them.

    What ``F.unfold`` gives, but as one copy: on a GPU that function launches a kernel for every image.
    """
    views = F.pad(x, (2, 2, 2, 2)).unfold(3, 5, stride).unfold(4, 5, stride)  # (M, B, C, h, w, 5, 5)
    return views.permute(0, 1, 2, 5, 6, 3, 4).flatten(5).flatten(2, 4)


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
