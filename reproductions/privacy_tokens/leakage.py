"""Two calibrated measures of a checkpoint: information about the batch, and the white-box decoder, with and without noise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.audit.scoring import interval
from leakgauge.monitor.whitebox import Protection, per_sample_gradients, probe
from reproductions.common.runner import Row
from reproductions.privacy_tokens.setups import Setup

NOISES = (0.0, 0.1, 0.5)
"""Noise multipliers of the decoder: standard deviation over clipping norm, as in DP-SGD."""
DRAWS = 4
"""Noises that each gradient is given."""
FLOATS = 1 << 30
"""Numbers that all candidates' gradients may take: enough for AlexNet's last three convolutions."""


def identification(model: nn.Module, setup: Setup, data: tuple[Tensor, Tensor], *, seed: int) -> list[Row]:
    """I(K; G + N) in nats: what a gradient with Gaussian noise tells about which of K listed batches made it.

    Nothing is trained. The weights and the K batches are known, so p(k | y) ∝ exp(−‖y − g_k‖²/2s²) is too, and the information is
    log K + E[log p(k | y)] with k uniform, averaged over ``DRAWS`` noises for every batch: at most log K. The noise of multiplier
    σ has s = σ C/n, C the median length of a sample's gradient and n the size of the batch.

    Ref: Cover and Thomas 2006, Eq. (2.36) — mutual information as the expected log-ratio of posterior and prior
    """
    names = watched(model, setup)
    parameters = [dict(model.named_parameters())[name] for name in names]
    rng = torch.Generator().manual_seed(seed)
    model.train()
    rows, size = [], setup.schedule.batch
    listed = [torch.randperm(len(data[0]), generator=rng)[:size].to(data[0].device) for _ in range(setup.candidates)]
    for at in listed:
        found = torch.autograd.grad(F.cross_entropy(model(data[0][at]), data[1][at]), parameters)
        rows.append(torch.cat([g.flatten() for g in found]))
    own = per_sample_gradients(model, F.cross_entropy, names, data[0][listed[0]], data[1][listed[0]], seed=seed)
    length = float(torch.stack([g.flatten(1).square().sum(1) for g in own.values()]).sum(0).sqrt().median())
    gradients = torch.stack(rows)
    return [
        {"noise": noise, **identified(gradients, noise * length / size, seed=seed), "sample_norm": length}
        for noise in NOISES
    ]


def identified(gradients: Tensor, std: float, *, seed: int = 0) -> Row:
    """log K + E[log p(k | g_k + N(0, std²))] for K rows, with a 95 % interval over rows; without noise equal rows share."""
    count = len(gradients)
    square = (gradients.double() @ gradients.double().T).cpu()
    lengths = square.diagonal()
    apart = (lengths[:, None] + lengths - 2 * square).clamp_min(0)
    if std == 0:
        same = (apart <= 1e-12 * lengths.mean()).double().sum(1)
        nats = math.log(count) - same.log()
    else:
        rng = torch.Generator(gradients.device).manual_seed(seed)
        values = []
        for _ in range(DRAWS):
            drawn = torch.randn(gradients.shape, generator=rng, device=gradients.device)
            cross = (drawn @ gradients.T).double().cpu()  # ⟨n_j, g_k⟩
            exponent = -(apart / (2 * std**2) + (cross.diagonal()[:, None] - cross) / std)
            values.append(exponent.log_softmax(1).diagonal() + math.log(count))
        nats = torch.stack(values).mean(0)
    middle, half = float(nats.mean()), 1.96 * float(nats.std()) / math.sqrt(count)
    return {
        "nats": middle,
        "low": middle - half,
        "high": middle + half,
        "ceiling": math.log(count),
        "candidates": count,
    }


def decoder(
    model: nn.Module,
    names: tuple[str, ...],
    data: tuple[Tensor, Tensor],
    *,
    noise: float,
    probes: int,
    seed: int,
    clip: float | None = None,
    members: int,
    candidates: int,
) -> Row:
    """AUC of members against others, from the released gradient of the parameters ``names``; mean over ``probes`` batches.

    With ``noise`` σ, or a ``clip`` C, every sample's gradient is clipped to C (by default the members' median length), and
    the mean of n members carries N(0, (σC/n)²) on each entry: one release of DP-SGD.
    """
    found: list[float] = []
    bounds: list[float] = []
    device = data[0].device
    for number in range(probes):
        rng = torch.Generator().manual_seed(seed + 1000 * number)
        rows = torch.randperm(len(data[0]), generator=rng)[:candidates].to(device)
        x, y = data[0][rows], data[1][rows]
        own = per_sample_gradients(model, F.cross_entropy, names, x[:members], y[:members], seed=seed)
        signal, protection = {n: g.mean(0) for n, g in own.items()}, Protection()
        if noise or clip is not None:
            lengths = torch.stack([g.flatten(1).square().sum(1) for g in own.values()]).sum(0).sqrt()
            norm = clip or float(lengths.median())
            scale = (norm / lengths.clamp_min(1e-30)).clamp_max(1.0)
            std = noise * norm / members
            signal = {n: torch.einsum("n,n...->...", scale, g) / members for n, g in own.items()}
            signal = {n: g + std * torch.randn(g.shape, generator=rng).to(g) for n, g in signal.items()}
            protection = Protection(clip=norm, noise=std or None)
        of, others = (x[:members], y[:members]), (x[members:], y[members:])
        one = probe(
            model, F.cross_entropy, signal, of, others, protection=protection, step=0, seed=seed, whole=True, floats=FLOATS
        )  # fmt: skip
        found.append(one.auc.value)
        if one.upper_nats is not None:
            bounds.append(one.upper_nats)
    spread = interval(found)
    return {
        "noise": noise,
        "auc": sum(found) / len(found),
        "low": None if spread is None else max(0.0, spread.low),
        "high": None if spread is None else min(1.0, spread.high),
        "each_auc": found,
        "upper_nats": sum(bounds) / len(bounds) if bounds else None,
    }


def watched(model: nn.Module, setup: Setup) -> tuple[str, ...]:
    """Names of the parameters whose gradients the paper's tokens are made of."""
    ours = tuple(f"{layer}." for layer in setup.gradient_layers)
    return tuple(name for name, _ in model.named_parameters() if name.startswith(ours))
