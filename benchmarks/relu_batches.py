"""How many samples of a batch ``relu_batches`` recovers from the gradient of a first layer, and whether its certificates hold.

    python -m benchmarks.relu_batches [--parts NAME ...] [--first 0] [--out FILE] [--from FILE]

Parts: ``exact`` (batches of 8 to 64, untrained network), ``trained`` (after 2 epochs on 2000 images), ``small`` (200 batches of 4 to 16 on
networks of 64 to 512 units, one or two hidden layers, 2 to 10 classes; for false certificates), ``noise`` (Gaussian noise with a share
of the gradient's norm) and ``behind`` (the layer behind two convolutions, without and with 200 public images: how good the images are).

Images are embedded Fashion-MNIST test images that no network saw, gradients are float32. A sample is exact if some
image of the result has a PSNR of 60 dB to it, and a certificate is false if none is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.json_lines import append_lines, read_lines
from benchmarks.label_rules import train
from leakgauge.attacks import relu_batches
from leakgauge.channels import Gradient
from leakgauge.core import Auxiliary, Pixels, Size, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.defenses import GaussianNoise
from leakgauge.errors import Inapplicable
from leakgauge.models import MLP

SPACE = Pixels((1, 28, 28), mean=MEAN, std=STD)
EXACT = 60.0
EPOCHS = 2


def trained(model: MLP, *, seed: int) -> MLP:
    images, labels = fashion()
    x, y = SPACE.encode(images[:2000]), labels[:2000]
    train(model, x, y, epochs=EPOCHS, seed=seed)
    return model


def decibels(guesses: Tensor, truths: Tensor) -> Tensor:
    """For each guess the PSNR to the nearest truth, both in model space."""
    shown, true = (SPACE.decode(x).flatten(1).double() for x in (guesses, truths))
    return -10 * torch.cdist(shown, true).square().div(true.shape[1]).amin(1).clamp_min(1e-20).log10()


def attacked(part: str, model: MLP, *, size: int, seed: int, noise: float = 0.0) -> dict[str, Any]:
    """One batch: what was certified, and how much of that is right."""
    images, labels = fashion("test")
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:size]
    x, y = SPACE.encode(images[rows]), labels[rows] % model.head.out_features
    victim = Victim(model, SPACE)
    defenses = (GaussianNoise(relative=noise),) if noise else ()
    seen = share(victim, Gradient(), x, y, defenses=defenses, seed=seed)
    hidden = [layer.out_features for layer in model.body if isinstance(layer, torch.nn.Linear)]
    row: dict[str, Any] = {
        "part": part, "hidden": hidden, "classes": model.head.out_features, "batch": size, "seed": seed, "noise": noise,
    }  # fmt: skip
    began = time.process_time()
    try:
        found = relu_batches()(victim, seen, seed=seed)
    except Inapplicable as reason:
        return row | {"refused": str(reason), "certified": 0, "exact": 0, "false": 0}
    assert found.certified is not None
    near = decibels(found.x[found.certified], x)
    return row | {
        "certified": len(near),
        "exact": int((decibels(x, found.x) >= EXACT).sum()),
        "false": int((near < EXACT).sum()),
        "lowest": round(float(near.min()), 1) if len(near) else None,
        "stated": dict(found.stated),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def behind(first: int) -> Iterator[dict[str, Any]]:
    """Images through two convolutions of stride 2 and a hidden layer of 256 units, untrained."""
    images, labels = fashion("test")
    public = SPACE.encode(fashion("train")[0][:200])
    for width, size in ((12, 4), (12, 8), (12, 16), (32, 4), (32, 8), (32, 16)):
        for seed in range(first, first + 5):
            torch.manual_seed(seed)
            model = torch.nn.Sequential(
                torch.nn.Conv2d(1, width, 5, 2, 2), torch.nn.ReLU(), torch.nn.Conv2d(width, width, 5, 2, 2), torch.nn.ReLU(),
                torch.nn.Flatten(), torch.nn.Linear(width * 49, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10),
            )  # fmt: skip
            rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:size]
            x, y, victim = SPACE.encode(images[rows]), labels[rows], Victim(model, SPACE)
            for given in ((), (Auxiliary(public),)):
                seen = share(victim, Gradient(), x, y, reveal=(Size(), *given), seed=seed)
                row = {"part": "behind", "width": width, "batch": size, "seed": seed, "public": 200 if given else 0}
                began = time.process_time()
                try:
                    found = relu_batches()(victim, seen, seed=seed)
                except Inapplicable as reason:
                    yield row | {"refused": str(reason)}
                    continue
                near = decibels(x, found.x)
                yield row | {
                    "inputs_certified": int(dict(found.stated)["inputs of 5 certified"].split()[0]),
                    "psnr": round(float(near.mean()), 1), "lowest": round(float(near.min()), 1),
                    "cpu_seconds": round(time.process_time() - began, 1),
                }  # fmt: skip


def exact(first: int) -> Iterator[dict[str, Any]]:
    for size, width, seeds in ((8, 1024, 10), (16, 1024, 10), (32, 1024, 5), (64, 2048, 3), (64, 1024, 3)):
        for seed in range(first, first + seeds):
            yield attacked("exact", MLP(hidden=(width, width // 2), seed=seed), size=size, seed=seed)


def after_training(first: int) -> Iterator[dict[str, Any]]:
    for seed in range(first, first + 5):
        model = trained(MLP(hidden=(1024, 512), seed=seed), seed=seed)
        for size in (8, 16):
            yield attacked("trained", model, size=size, seed=seed)


def small(first: int) -> Iterator[dict[str, Any]]:
    for seed in range(first, first + 200):
        width, classes, size = 64 * 2 ** (seed % 4), (2, 4, 10)[seed % 3], 4 + seed % 13
        hidden = (width,) if seed // 4 % 2 else (width, width // 2)
        yield attacked("small", MLP(hidden=hidden, classes=classes, seed=seed), size=size, seed=seed)


def noisy(first: int) -> Iterator[dict[str, Any]]:
    for noise in (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        for seed in range(first, first + 3):
            yield attacked("noise", MLP(hidden=(1024, 512), seed=seed), size=8, seed=seed, noise=noise)


PARTS = {"exact": exact, "trained": after_training, "small": small, "noise": noisy, "behind": behind}


def table(rows: list[dict[str, Any]]) -> str:
    """Batches, exact and falsely certified samples by part, width, batch size and noise, as Markdown."""
    rows = [row for row in rows if row["part"] != "behind"]
    lines = [
        "| part | units | batch | noise | batches | refused | all exact | samples exact | certified | false | CPU s |",
        "|" + "---|" * 11,
    ]

    def cell(row: dict[str, Any]) -> tuple[Any, ...]:
        if row["part"] == "small":
            return (f"small, {len(row['hidden'])} hidden", row["hidden"][0], "4 to 16", 0.0)
        return (row["part"], row["hidden"][0], row["batch"], row["noise"])

    for key in dict.fromkeys(map(cell, rows)):
        own = [row for row in rows if cell(row) == key]
        refused, whole = sum("refused" in row for row in own), sum(row["exact"] == row["batch"] for row in own)
        share_ = sum(row["exact"] for row in own) / sum(row["batch"] for row in own)
        proven = sum(row["certified"] for row in own) / sum(row["batch"] for row in own)
        cpu = sum(row.get("cpu_seconds", 0.0) for row in own) / len(own)
        values = (
            *key,
            len(own),
            refused,
            whole,
            f"{share_:.0%}",
            f"{proven:.0%}",
            sum(row["false"] for row in own),
            f"{cpu:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, values))} |")
    return "\n".join(lines)


def table_behind(rows: list[dict[str, Any]]) -> str:
    """Images behind convolutions by channels, batch size and public images, with the PSNR of batches that were not refused."""
    own = [row for row in rows if row["part"] == "behind"]
    lines = [
        "| channels | batch | public images | batches | refused | inputs certified | mean PSNR | lowest | CPU s |",
        "|" + "---|" * 9,
    ]
    for key in dict.fromkeys((row["width"], row["batch"], row["public"]) for row in own):
        here = [row for row in own if (row["width"], row["batch"], row["public"]) == key]
        ran = [row for row in here if "refused" not in row]
        proven = sum(row["inputs_certified"] for row in ran) / (key[1] * len(here))
        mean, cpu = (sum(row[name] for row in ran) / max(1, len(ran)) for name in ("psnr", "cpu_seconds"))
        lowest = min((row["lowest"] for row in ran), default=0.0)
        cells = (
            *key,
            len(here),
            len(here) - len(ran),
            f"{proven:.0%}",
            f"{mean:.1f} dB",
            f"{lowest:.1f} dB",
            f"{cpu:.1f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) if own else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--first", type=int, default=0, help="first seed; the attack was developed on seeds below 200")
    parser.add_argument("--out", type=Path, help="append one JSON line per batch")
    parser.add_argument("--from", dest="source", type=Path, help="print the table of an earlier --out file and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.source is not None:
        rows = read_lines(options.source)
        print("\n\n".join(filter(None, (table(rows), table_behind(rows)))))
        return
    rows = list[dict[str, Any]]()
    for part in options.parts:
        for row in PARTS[part](options.first):
            rows.append(row)
            append_lines(options.out, row)
    print("\n\n".join(filter(None, (table(rows), table_behind(rows)))))


if __name__ == "__main__":
    main()
