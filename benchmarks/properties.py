"""How well a property of a batch is told from sketches of its update.

    python -m benchmarks.properties IMAGES.npz [--parts plain noise …] [--images 4000] [--square 8] [--out FILE]

A property is planted: two fifths of the images get a bright square of 8 x 8 pixels in a corner, whatever their class. A client's batch of
32 holds 20 % or 50 % of them. IMAGES.npz holds grey images of 28 x 28 pixels and labels: KMNIST's test set in the committed figures. The
count read off the last layer was designed on MNIST, the other probes while looking at Fashion-MNIST and KMNIST. The networks are the
embedded MLP's and CNN's; all parts but ``plain`` use the MLP, untrained, unless a row says CNN.

``plain``: the gradient, with random weights and after 300 steps of training. ``uncounted``: the same without the count.
``noise``: Gaussian noise with a share of the gradient's norm. ``clients``: sums of several clients, of which one has the property.
``channels``: local steps, features of a split, single images.
``sites``: four sites that differ in the contrast of their images (gain 1, 0.9, 0.8, 0.7) and one run with the sites shuffled.
``rounds``: evidence added over the first steps of a training, with batches of 8. ``null``: 20 runs in which the property is shuffled over
the images; ``inside`` says whether the AUC is inside the null's interval.

Committed rows keep ``auc``, ``tpr`` and ``blind`` as they were measured. Their ``disjoint`` was first that of single batches. It was
divided by rounds x clients and rounded down; ``auc_low`` and ``auc_high`` are ``auc_interval(auc, disjoint, disjoint)``, ``null`` was
widened to ``auc_interval(0.5, disjoint, disjoint)``, ``inside`` and ``leaks`` follow. A test in ``tests/monitor/test_properties.py``
repeats this.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.json_lines import print_and_append
from leakgauge.channels import Aggregate, Features, FedAvg, Gradient
from leakgauge.channels.facts import clients as clients_of
from leakgauge.core import Pixels, Victim
from leakgauge.data.arrays import read_npz
from leakgauge.defenses import GaussianNoise
from leakgauge.models import CNN, MLP
from leakgauge.monitor.properties import Share, property_leakage, site_leakage

SPACE = Pixels((1, 28, 28), mean=(0.5,), std=(0.25,))


def planted(path: Path, count: int, seed: int, side: int) -> tuple[Tensor, Tensor, Tensor]:
    images, labels = read_npz(path)
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(images), generator=rng)[:count]
    images, labels = images[rows].clone(), labels[rows]
    has = torch.rand(count, generator=rng) < 0.4
    images[has, :, :side, :side] = 1.0
    return SPACE.encode(images), labels, has


def trained(model: nn.Module, x: Tensor, y: Tensor, at: tuple[int, ...], *, seed: int) -> list[nn.Module]:
    """The model after each of ``at`` steps of SGD."""
    model, found, rng = deepcopy(model), list[nn.Module](), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(max(at) + 1):
        if step in at:
            found.append(deepcopy(model))
        rows = torch.randint(len(x), (32,), generator=rng)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return found


def parts(asked: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Part, name of the row, and what :func:`property_leakage` is given."""
    x, y, has = planted(asked.file, asked.images, asked.seed, asked.square)
    mlp, cnn = MLP(seed=asked.seed), CNN(seed=asked.seed)
    fresh = Victim(mlp, SPACE)
    usual: dict[str, Any] = {
        "victims": fresh,
        "channel": Gradient(),
        "x": x,
        "y": y,
        "has": has,
        "shadows": 600,
        "tests": 400,
    }
    for part in (part for part in ("plain", "uncounted") if part in asked.parts):
        for name, model in (("MLP", mlp), ("CNN", cnn)):
            yield part, f"{name}, untrained", {**usual, "victims": Victim(model, SPACE)}
            (after,) = trained(model, x, y, (300,), seed=asked.seed)
            yield part, f"{name}, after 300 steps", {**usual, "victims": Victim(after, SPACE)}
    if "noise" in asked.parts:
        for relative in (0.1, 0.3, 1.0, 3.0, 10.0):
            yield "noise", f"{relative:g} x norm", {**usual, "defenses": (GaussianNoise(relative=relative),)}
    if "rounds" in asked.parts:
        victims = [Victim(model, SPACE) for model in trained(mlp, x, y, tuple(range(16)), seed=asked.seed)]
        for count in (1, 4, 16):
            few = {"batch": 8, "shadows": 300, "tests": 400}
            yield "rounds", f"{count} rounds", {**usual, "victims": victims[:count], **few}
            noise = {"defenses": (GaussianNoise(relative=10.0),)}
            yield "rounds", f"{count} rounds, noise 10 x norm", {**usual, "victims": victims[:count], **few, **noise}
    if "clients" in asked.parts:
        for clients in (4, 16):
            yield "clients", f"{clients} clients", {**usual, "channel": Aggregate(clients=clients)}
    if "channels" in asked.parts:
        yield "channels", "FedAvg, 4 steps", {**usual, "channel": FedAvg(steps=4, lr=0.05)}
        yield "channels", "features at body.0", {**usual, "channel": Features("body.0")}
        for cut in ("features.2", "features.5", "features.8"):
            yield (
                "channels",
                f"CNN, features at {cut}",
                {**usual, "victims": Victim(cnn, SPACE), "channel": Features(cut)},
            )
        yield (
            "channels",
            "CNN, FedAvg, 4 steps",
            {**usual, "victims": Victim(cnn, SPACE), "channel": FedAvg(steps=4, lr=0.05)},
        )
        yield "channels", "CNN, 4 clients", {**usual, "victims": Victim(cnn, SPACE), "channel": Aggregate(clients=4)}
        single = {"batch": 1, "share_of": Share(0.0, 1.0)}
        yield "channels", "one image, gradient", {**usual, **single}
        yield "channels", "one image, features at body.0", {**usual, "channel": Features("body.0"), **single}
    if "null" in asked.parts:
        for number in range(20):
            shuffled = has[torch.randperm(len(has), generator=torch.Generator().manual_seed(1000 + number))]
            yield "null", f"shuffle {number}", {**usual, "has": shuffled, "shadows": 200, "tests": 200, "seed": number}


def sites(asked: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the row, and what :func:`site_leakage` is given."""
    images, labels = read_npz(asked.file)
    rng = torch.Generator().manual_seed(asked.seed)
    rows = torch.randperm(len(images), generator=rng)[: asked.images]
    images, labels, site = images[rows], labels[rows], torch.arange(len(rows)) % 4
    x = SPACE.encode(images * (1 - 0.1 * site)[:, None, None, None])
    for name, model in (("MLP", MLP(seed=asked.seed)), ("CNN", CNN(seed=asked.seed))):
        usual: dict[str, Any] = {
            "victim": Victim(model, SPACE),
            "channel": Gradient(),
            "x": x,
            "y": labels,
            "shadows": 600,
        }
        yield name, {**usual, "sites": site}
        yield f"{name}, noise 1 x norm", {**usual, "sites": site, "defenses": (GaussianNoise(relative=1.0),)}
    yield (
        "MLP, sites shuffled",
        {
            **usual,
            "victim": Victim(MLP(seed=asked.seed), SPACE),
            "sites": site[torch.randperm(len(site), generator=rng)],
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    every = ["plain", "uncounted", "noise", "clients", "channels", "rounds", "sites", "null"]
    parser.add_argument("--parts", nargs="+", choices=every, default=every)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--square", type=int, default=8, help="its side in pixels")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for part, name, given in parts(asked):
        began = time.perf_counter()
        uncounted = mock.patch("leakgauge.monitor.properties.fit_counts", return_value=None)
        with uncounted if part == "uncounted" else nullcontext():
            found = property_leakage(**{"seed": asked.seed, **given})
        low, high = found.null_interval
        row = {
            "part": part,
            "square": asked.square,
            "name": name,
            "auc": found.auc.value,
            "auc_low": found.auc.low,
            "auc_high": found.auc.high,
            "tpr": found.tpr,
            "blind": found.blind.value,
            "null": [low, high],
            "inside": low <= found.auc.value <= high,
            "leaks": found.leaks,
            "batch": found.batch,
            "shadows": found.shadows,
            "tests": found.tests,
            "rounds": found.rounds,
            "clients": clients_of(given["channel"]),
            "disjoint": found.disjoint,
            "seed": asked.seed,
            "seconds": round(time.perf_counter() - began, 1),
        }
        print_and_append(asked.out, row)
    for name, given in sites(asked) if "sites" in asked.parts else ():
        began = time.perf_counter()
        named = site_leakage(**{"seed": asked.seed, **given})
        row = {
            "part": "sites",
            "name": name,
            "top1": named.top1.value,
            "top1_low": named.top1.low,
            "top1_high": named.top1.high,
            "chance": named.chance,
            "blind": named.blind.value,
            "null_high": named.null_high,
            "leaks": named.leaks,
            "batch": named.batch,
            "shadows": named.shadows,
            "tests": named.tests,
            "disjoint": named.disjoint,
            "seed": asked.seed,
            "seconds": round(time.perf_counter() - began, 1),
        }
        print_and_append(asked.out, row)


if __name__ == "__main__":
    main()
