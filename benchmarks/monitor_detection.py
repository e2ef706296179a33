"""What the monitor finds: trainings on embedded Fashion-MNIST samples, and the white-box probe under growing noise.

    python -m benchmarks.monitor_detection [--seeds 3] [--steps 400] [--out FILE]

Trainings: batch 20, Adam at 9e-4, and SGD at 1e-4, which leaves the weights about where they were initialised. Noise: σ is
the noise multiplier on the mean of gradients that were clipped per sample at their median norm, 20 members and 180
others at initialisation, mean over ten draws.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.json_lines import write_lines
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.models.cnn import CNN
from leakgauge.models.lenet import LeNet
from leakgauge.monitor import watch
from leakgauge.monitor.whitebox import Protection, per_sample_gradients, probe

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "lenet": lambda seed: LeNet(in_channels=1, side=28, seed=seed),
    "cnn": lambda seed: CNN(seed=seed),
}
BATCH = 20


def training(name: str, optimizer_name: str, *, seed: int, steps: int) -> dict[str, Any]:
    images, labels = fashion()
    x = (images - MEAN[0]) / STD[0]
    model, criterion = MODELS[name](seed), nn.CrossEntropyLoss()
    if optimizer_name == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=9e-4)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    monitor = watch(model, optimizer, loss=criterion, every=50, strict=True, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    order: list[Tensor] = []
    for _ in range(steps):
        if not order:
            monitor.flush()
            order = list(torch.randperm(len(x), generator=rng).split(BATCH))
        index = order.pop()
        optimizer.zero_grad()
        criterion(model(x[index]), labels[index]).backward()
        optimizer.step()
    found = monitor.compute()
    assert found.infonce is not None
    assert found.top1 is not None
    assert found.controls is not None
    curve = [record["scalars"] for record in monitor.records()]
    return {
        "model": name,
        "optimizer": optimizer_name,
        "seed": seed,
        "steps": steps,
        "alarm_at": found.alarm_at,
        "nats": [round(s.get("privacy/infonce_nats", 0.0), 3) for s in curve],
        "top1_of_16": round(found.top1.value, 3),
        "null": round(found.controls.null.value, 3),
        "decoy": round(found.controls.decoy.value, 3),
        "noise": [round(value, 3) for value in found.controls.noise],
        "whitebox_auc": [round(s["privacy/whitebox/auc"], 3) for s in curve],
        "loudest_layer": max(found.layers, key=lambda layer: found.layers[layer]),
    }


def under_noise() -> Iterator[dict[str, Any]]:
    images, labels = fashion()
    x = (images[:200] - MEAN[0]) / STD[0]
    y, model = labels[:200], MODELS["lenet"](0)
    names = tuple(name for name, _ in model.named_parameters())
    each = per_sample_gradients(model, F.cross_entropy, names, x, y, seed=0)
    norms = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
    clip = float(norms.median())
    scale = (clip / norms).clamp_max(1)[:BATCH]
    mean = {n: (g[:BATCH] * scale.view(-1, *[1] * (g.ndim - 1))).mean(0) for n, g in each.items()}
    for sigma in (0.0, 0.1, 0.5, 1.0, 2.0):
        std = sigma * clip / BATCH
        found = []
        for seed in range(10):
            rng = torch.Generator().manual_seed(seed)
            noisy = {n: g + std * torch.randn(g.shape, generator=rng) for n, g in mean.items()}
            protection = Protection(clip=clip, noise=std or None)
            members, others = (x[:BATCH], y[:BATCH]), (x[BATCH:], y[BATCH:])
            found.append(
                probe(model, F.cross_entropy, noisy, members, others, protection=protection, step=0, seed=0, whole=True)
            )
        yield {
            "noise_multiplier": sigma,
            "whitebox_auc": round(sum(f.auc.value for f in found) / len(found), 3),
            "tpr_at_1pct_fpr": round(sum(f.tpr.value for f in found) / len(found), 3),
            "upper_nats": None if found[0].upper_nats is None else round(found[0].upper_nats, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    for line in under_noise():
        lines.append(line)
        print(json.dumps(line), flush=True)
    for name in MODELS:
        for optimizer in ("adam", "sgd"):
            for seed in range(options.seeds):
                lines.append(training(name, optimizer, seed=seed, steps=options.steps))
                print(json.dumps(lines[-1]), flush=True)
    write_lines(options.out, lines)


if __name__ == "__main__":
    main()
