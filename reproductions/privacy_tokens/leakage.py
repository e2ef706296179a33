"""Two calibrated measures of a checkpoint: held-out InfoNCE, and the white-box decoder with and without noise."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.audit.intervals import interval
from leakgauge.measures.mutual_information import InfoNCE
from leakgauge.monitor.gradient_pairs import Probe
from leakgauge.monitor.whitebox import Protection, per_sample_gradients, probe
from reproductions.privacy_tokens.results_file import Row
from reproductions.privacy_tokens.setups import BucketSketch, Setup

PROJECTED = 32
"""Numbers to which a batch's mean picture is projected, at random but once and for all: no weight of the model enters."""
NOISES = (0.0, 0.1, 0.5)
"""Noise multipliers of the decoder: standard deviation over clipping norm, as in DP-SGD."""
FLOATS = 1 << 30
"""Numbers that all candidates' gradients may take: enough for AlexNet's last three convolutions."""


def infonce(model: nn.Module, setup: Setup, data: tuple[Tensor, Tensor], *, seed: int) -> Row:
    """Held-out InfoNCE between batches and their gradients at fixed weights: which of K batches made this gradient?"""
    watch = Probe(model.train(), F.cross_entropy, setup.feature_layer, setup.gradient_layers, BucketSketch(128))
    rng = torch.Generator().manual_seed(seed)
    project = torch.randn(math.prod(setup.shape), PROJECTED, generator=rng)
    pictures, gradients = [], []
    for _ in range(setup.pairs):
        rows = torch.randperm(len(data[0]), generator=rng)[: setup.schedule.batch].to(data[0].device)
        pictures.append(data[0][rows].flatten(1).mean(0).cpu() @ project)
        gradients.append(torch.cat(watch.step(data[0][rows], data[1][rows])[1]))
    found = InfoNCE(setup.candidates)(torch.stack(pictures), torch.stack(gradients), seed=seed)
    return {"nats": found.nats, "low": found.low, "high": found.high, "ceiling": found.ceiling, "pairs": setup.pairs}


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
