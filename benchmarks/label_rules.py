"""How many labels each rule reads from the gradient of the head: trained and untrained networks, batches of 1 to 128.

    python -m benchmarks.label_rules [--out FILE] [--families NAME ...] [--sizes B ...] [--quick] [--tune]
    python -m benchmarks.label_rules --from FILE

Networks of five families are trained on 2000 embedded Fashion-MNIST images with Adam (0, 2 and 6 epochs). The client's batches come
from 500 test images: drawn at random, with class shares from a Dirichlet of concentration 0.3 (imbalanced), or as mixtures of
two images (soft labels). It sends a gradient, or the change of weights after 5 local steps on the batch with a
learning rate of 0.02 or 0.1. Networks with batch
normalisation run in train mode, as clients do. The score is the share of the label multiset that is right: Σ_c min(n̂_c, n_c)/B.

Rules: ``oracle`` is no rule but what the head's gradient can be made to say: a ridge regression from all of ∂W and ∂b to the counts,
fitted for each network on 400 batches of other images with their true labels, which no server has (gradients of batches of 32 drawn at
random only). ``even`` guesses every class equally often; ``bias counts`` is Wainakh et al.'s; ``plain`` is n = B/K − B·∂b; ``expected`` is
:class:`ExpectedCounts` without public images, ``expected+`` with 250 of them (not the client's, without labels). ``states`` and
``states+`` are the shares that these two expect of themselves.

``--tune`` runs the networks (other seeds, epochs and training images) and the other 500 test images on which the constants of
``class_counts`` were chosen; ``HIDDEN``, ``WILD`` and ``LOST`` without ResNet-8, none with a ViT. ``ALIKE`` is older and was chosen on
networks with the seed of those reported. Rows are appended to ``--out`` one network at a time; a run that was interrupted continues
with the next one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.json_lines import append_lines, kept_lines, read_lines
from leakgauge.channels import FedAvg, Gradient
from leakgauge.core import Auxiliary, Channel, Observation, Pixels, Size, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.errors import Inapplicable
from leakgauge.inversion import BiasCounts, ExpectedCounts
from leakgauge.inversion.labels import head_gradient
from leakgauge.models import CNN, MLP, LeNet, ViT
from leakgauge.models.seeded import seeded

CLASSES = 10
RULES = ("even", "bias counts", "plain", "expected", "expected+")
ORACLE = "oracle"
STATING = {"expected": "states", "expected+": "states+"}
MIDDLE = 32
DRAWS = {1: 3, 4: 3, 8: 3, 32: 4, 128: 1}
"""Batches of each size in each cell."""


@dataclass(frozen=True)
class Part:
    """Networks and images; those that constants are chosen on and those that are reported have nothing in common."""

    seeds: Mapping[int, int]  # by epochs of training
    trained: slice
    public: slice
    private: slice
    others: slice  # of training images, with which the oracle is fitted


REPORTED = Part({0: 0, 2: 0, 6: 0}, slice(0, 2000), slice(2000, 2250), slice(500, 1000), slice(2250, 3000))
TUNED = Part({0: 11, 1: 11, 3: 12, 8: 13}, slice(1000, 3000), slice(0, 250), slice(0, 500), slice(250, 1000))


class Residual(nn.Module):
    """Two convolutions with batch normalisation and a shortcut."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, 2, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet8(seed: int) -> nn.Module:
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Residual(8, 8), Residual(8, 16),
            Residual(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
        )  # fmt: skip


FAMILIES: dict[str, Callable[[int], nn.Module]] = {
    "mlp": lambda seed: MLP(seed=seed),
    "lenet": lambda seed: LeNet(in_channels=1, side=28, seed=seed),
    "cnn": lambda seed: CNN(seed=seed),
    "resnet": resnet8,
    "vit": lambda seed: ViT(seed=seed),
}
CHANNELS: dict[str, Channel] = {
    "gradient": Gradient(),
    "fedavg 0.02": FedAvg(steps=5, lr=0.02),
    "fedavg 0.1": FedAvg(steps=5, lr=0.1),
}


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, seed: int) -> nn.Module:
    optimizer, rng = torch.optim.Adam(model.parameters(), lr=1e-3), torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=rng).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def draw(kind: str, x: Tensor, y: Tensor, size: int, *, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of the client: images, and labels (B,) or, for mixtures, class probabilities (B, K)."""
    weight = torch.ones(len(y))
    if kind == "imbalanced":
        seed = int(torch.randint(2**31, (1,), generator=rng))
        weight = torch.from_numpy(np.random.default_rng(seed).dirichlet([0.3] * CLASSES) + 1e-9)[y]
    rows = torch.multinomial(weight, size, replacement=True, generator=rng)
    if kind != "soft":
        return x[rows], y[rows]
    others, mix = torch.randint(len(y), (size,), generator=rng), 0.5 + 0.5 * torch.rand(size, generator=rng)
    hot = F.one_hot(y, CLASSES).float()
    mixed = mix[:, None, None, None] * x[rows] + (1 - mix)[:, None, None, None] * x[others]
    return mixed, mix[:, None] * hot[rows] + (1 - mix)[:, None] * hot[others]


def plain(victim: Victim, seen: Observation) -> Tensor:
    """Counts B/K − B·∂b, rounded to the nearest that add up to B."""
    assert seen.size is not None
    slope = head_gradient(victim, seen, "bias")
    if isinstance(seen.channel, FedAvg):
        slope = slope / (seen.channel.lr * seen.channel.steps)
    return nearest_counts(seen.size * (1 / CLASSES - slope), seen.size)


def nearest_counts(expected: Tensor, size: int) -> Tensor:
    """The nearest whole counts that add up to ``size``."""
    counts = torch.zeros(CLASSES)
    for _ in range(size):
        counts[(expected - counts).argmax()] += 1
    return counts


def counts(rule: str, victim: Victim, seen: Observation, public: Tensor) -> tuple[Tensor, float | None]:
    """Counts per class and, for the rule that states it, the expected score."""
    assert seen.size is not None
    rng = torch.Generator().manual_seed(0)
    if rule == "even":
        share_, rest = divmod(seen.size, CLASSES)
        return torch.tensor([share_ + (c < rest) for c in range(CLASSES)]).float(), None
    if rule == "plain":
        return plain(victim, seen), None
    if rule == "bias counts":
        labels = BiasCounts(strict=False)(victim, seen, rng=rng)
        assert labels is not None
        return torch.bincount(labels, minlength=CLASSES).float(), None
    if rule == "expected+":
        seen = Auxiliary(public)(seen, victim, public[:0], torch.empty(0), rng=rng)
    found = ExpectedCounts().estimate(victim, seen, rng=rng)
    return found.counts.float(), found.accuracy


@dataclass(frozen=True, eq=False)
class Oracle:
    """Counts from the whole gradient of the head by a regression that was fitted with true labels."""

    mean: Tensor
    inputs: Tensor
    weight: Tensor
    usual: Tensor

    @classmethod
    def fit(cls, victim: Victim, x: Tensor, y: Tensor, size: int, *, batches: int = 400, seed: int = 0) -> Oracle:
        """What n + B·∂b = B·p̄ is on average, and by kernel ridge regression how it changes; the penalty is the best of seven on the
        last quarter of the batches, which are of other images."""
        rng = torch.Generator().manual_seed(seed)
        kept, first = 3 * batches // 4, 3 * len(y) // 4
        drawn = [torch.randint(first, (size,), generator=rng) for _ in range(kept)]
        drawn += [torch.randint(first, len(y), (size,), generator=rng) for _ in range(batches - kept)]
        inputs = torch.stack([_whole_head(victim, share(victim, Gradient(), x[rows], y[rows])) for rows in drawn])
        counts = torch.stack([torch.bincount(y[rows], minlength=CLASSES).double() for rows in drawn])
        counts += size * inputs[:, -CLASSES:]
        mean, usual = inputs.mean(0), counts.mean(0)
        inputs = inputs - mean
        kernel, wanted = inputs @ inputs.T, counts - usual
        unit, tried = float(kernel.diagonal().mean()), list[tuple[float, float]]()
        for penalty in (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3):
            own = kernel[:kept, :kept] + penalty * unit * torch.eye(kept)
            miss = kernel[kept:, :kept] @ torch.linalg.solve(own, wanted[:kept]) - wanted[kept:]
            tried.append((float(miss.square().mean()), penalty))
        weight = torch.linalg.solve(kernel + min(tried)[1] * unit * torch.eye(batches), wanted)
        return cls(mean, inputs, weight, usual)

    def __call__(self, victim: Victim, seen: Observation) -> Tensor:
        assert seen.size is not None
        given = _whole_head(victim, seen)
        expected = self.usual + (given - self.mean) @ self.inputs.T @ self.weight - seen.size * given[-CLASSES:]
        return nearest_counts(expected, seen.size)


def _whole_head(victim: Victim, seen: Observation) -> Tensor:
    return torch.cat([head_gradient(victim, seen, which).flatten() for which in ("weight", "bias")])


def rows_of(family: str, epochs: int, part: Part, *, draws: dict[int, int]) -> Iterator[dict[str, Any]]:
    space = Pixels((1, 28, 28), mean=MEAN, std=STD)
    (images, labels), (held, truth) = fashion(), fashion("test")
    x, private, truth = space.encode(images), space.encode(held)[part.private], truth[part.private]
    seed = part.seeds[epochs]
    model = train(FAMILIES[family](seed), x[part.trained], labels[part.trained], epochs=epochs, seed=seed)
    with torch.no_grad():
        accuracy = float((model.eval()(private).argmax(1) == truth).float().mean())
    victim = Victim(model, space)
    if victim.depends_on_mode():
        victim = Victim(model, space, mode="train")
    oracle = Oracle.fit(victim, x[part.others], labels[part.others], MIDDLE, seed=seed) if MIDDLE in draws else None
    rng = torch.Generator().manual_seed(seed)
    for channel in CHANNELS:
        for kind in ("random", "imbalanced", "soft"):
            for size, count in draws.items():
                if size == 1 and victim.mode == "train":
                    continue
                for number in range(count):
                    batch, y = draw(kind, private, truth, size, rng=rng)
                    seen = share(victim, CHANNELS[channel], batch, y, reveal=(Size(),))
                    true = y.sum(0) if y.dim() == 2 else torch.bincount(y, minlength=CLASSES).float()
                    row: dict[str, Any] = {
                        "family": family, "epochs": epochs, "accuracy": round(accuracy, 3), "channel": channel, "labels": kind,
                        "batch": size, "draw": number, "scores": {},
                    }  # fmt: skip
                    for rule in RULES:
                        try:
                            found, states = counts(rule, victim, seen, x[part.public])
                        except Inapplicable as reason:
                            row.setdefault("refused", {})[rule] = str(reason)
                            continue
                        row["scores"][rule] = round(float(torch.minimum(found, true).sum()) / size, 4)
                        if states is not None:
                            row[STATING[rule]] = round(states, 4)
                    if oracle is not None and (channel, kind, size) == ("gradient", "random", MIDDLE):
                        score = float(torch.minimum(oracle(victim, seen), true).sum()) / size
                        row["scores"][ORACLE] = round(score, 4)
                    yield row


def mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else "–"


def table(rows: Sequence[dict[str, Any]], *, keys: tuple[str, ...]) -> str:
    """Mean scores by ``keys``, as Markdown."""
    columns = (*keys, "batches", *RULES, ORACLE, *STATING.values())
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for cell in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in keys) == cell]
        scores = [mean([row["scores"][rule] for row in own if rule in row["scores"]]) for rule in (*RULES, ORACLE)]
        states = [mean([row[name] for row in own if name in row]) for name in STATING.values()]
        lines.append(f"| {' | '.join(map(str, (*cell, len(own), *scores, *states)))} |")
    return "\n".join(lines)


def tables(rows: Sequence[dict[str, Any]]) -> str:
    """The tables of the page: by state of training, every cell at a batch of 32, and what the rules state against what they read."""
    state = [
        row | {"network": "untrained" if row["epochs"] == 0 else "trained"}
        for row in sorted(rows, key=lambda row: (row["epochs"], row["family"]))
    ]
    middle = [row for row in state if row["batch"] == MIDDLE]
    parts = [
        table(
            sorted(state, key=lambda row: row["network"], reverse=True), keys=("network", "channel", "labels", "batch")
        ),
        table(middle, keys=("family", "epochs", "accuracy", "channel", "labels")),
        calibration(rows),
    ]
    return "\n\n".join(parts)


def calibration(rows: Sequence[dict[str, Any]]) -> str:
    """What was read on average where the rule states so much, apart for batches drawn at random and clients with few classes."""
    kinds = ("random", "imbalanced")
    lines = ["| the rule states | " + " | ".join(f"{kind}: batches | stated | read" for kind in kinds) + " |"]
    lines.append("|" + "---|" * (1 + 3 * len(kinds)))
    for low, high in ((0.0, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.99), (0.99, 1.01)):
        cells = [f"{low:g} to {min(high, 1):g}"]
        for kind in kinds:
            own = [
                (row[name], row["scores"][rule])
                for row in rows
                for rule, name in STATING.items()
                if row["labels"] == kind and low <= row.get(name, -1) < high
            ]
            cells += [str(len(own)), mean([pair[0] for pair in own]), mean([pair[1] for pair in own])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small network, batches of 8 and 32")
    parser.add_argument("--tune", action="store_true", help="the networks and images that constants are chosen on")
    parser.add_argument("--sizes", nargs="+", type=int, choices=list(DRAWS), default=list(DRAWS), help="of batches")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument(
        "--out", type=Path, help="append one JSON line per batch; networks that are in it are not run again"
    )
    parser.add_argument("--from", dest="source", type=Path, help="print the tables of an earlier --out file and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.source is not None:
        print(tables(read_lines(options.source)))
        return
    rows = kept_lines(options.out)
    done = {(row["family"], row["epochs"]) for row in rows}
    part = TUNED if options.tune else REPORTED
    draws = {8: 2, 32: 2} if options.quick else {size: DRAWS[size] for size in options.sizes}
    for family in options.families[:1] if options.quick else options.families:
        for epochs in list(part.seeds)[:2] if options.quick else part.seeds:
            if (family, epochs) in done:
                continue
            new = list(rows_of(family, epochs, part, draws=draws))
            rows += new
            append_lines(options.out, *new)
    print(tables(rows))


if __name__ == "__main__":
    main()
