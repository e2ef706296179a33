"""An inverter learned from simulated updates, against defenses that it knows and does not know.

    python -m benchmarks.learned_inversion [--defenses none sign …] [--batch 1] [--images 20] [--first 220] [--seeds 0] [--out FILE]
    python -m benchmarks.learned_inversion --train CIFAR.npz --test CIFAR.npz --device cuda --updates 50000 --epochs 40

Embedded CNN in eval mode, ``learned_inversion`` with its defaults on 700 auxiliary images (the last ones of the embedded test set, none
of which is attacked), batches of ``--batch``. *Static* simulates plain updates, *adaptive* defended ones; *null* learns from shuffled
pairs. Settings were chosen on images 0 to 19. One decoder serves all attacked batches of a row. With ``--train`` and ``--test`` (arrays
``images``, bytes, N × 3 × 32 × 32, and ``labels``) the victim is a LeNet with fresh weights on these.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.json_lines import append_lines
from leakgauge.attacks import learned_inversion
from leakgauge.audit import Case, embedded
from leakgauge.audit.case import DEFENSES
from leakgauge.audit.scoring import pair_images
from leakgauge.audit.session import Setup
from leakgauge.audit.specs import made_from
from leakgauge.channels import Gradient
from leakgauge.core import Auxiliary, Defended, Pixels, Size, Victim, share
from leakgauge.models.lenet import LeNet

GRID = ("none", "sign", "prune:0.99", "gaussian_noise:relative=1.0")
OTHERS = 700


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--defenses", nargs="+", default=list(GRID))
    words.add_argument("--batch", type=int, default=1)
    words.add_argument("--images", type=int, default=20)
    words.add_argument("--first", type=int, default=220)
    words.add_argument("--seeds", type=int, nargs="+", default=[0])
    words.add_argument("--updates", type=int, default=3000)
    words.add_argument("--values", type=int, default=2048)
    words.add_argument("--epochs", type=int, default=20)
    words.add_argument("--device", default="cpu")
    words.add_argument("--train", type=Path)
    words.add_argument("--test", type=Path)
    words.add_argument("--out", type=Path, default=Path("benchmarks/results/learned_inversion_cpu.jsonl"))
    asked = words.parse_args()
    setup, others = _embedded(asked.device) if asked.train is None else _given(asked.train, asked.test, asked.device)
    victim = setup.victim
    own = Auxiliary(victim.to_input(victim.space.encode(others)))
    attack = learned_inversion(updates=asked.updates, values=asked.values, epochs=asked.epochs)
    rows = torch.arange(asked.first, asked.first + asked.images).split(asked.batch)
    batches = [setup.private(Case(first=int(r[0]), batch_size=len(r))) for r in rows if len(r) == asked.batch]
    for spec in asked.defenses:
        defenses = () if spec == "none" else (made_from(spec, DEFENSES, kind="defense"),)
        for seed in asked.seeds:
            row = {
                "model": victim.name, "defense": spec, "batch": asked.batch, "first": asked.first, "seed": seed,
                "auxiliary": len(others), "updates": asked.updates, "epochs": asked.epochs,
            }  # fmt: skip
            for name, known, tried in (
                ("static", (), attack), ("adaptive", (Defended(),), attack), ("null", (Defended(),), attack.blind()),
            ):  # fmt: skip
                if name == "static" and not defenses:
                    continue
                reveal = (Size(), own, *known)
                seen = [
                    share(victim, Gradient(), x, y, defenses=defenses, reveal=reveal, seed=seed + 1000 * i)
                    for i, (x, y) in enumerate(batches)
                ]
                began = time.perf_counter()
                found = tried.many(victim, seen, seed=seed)
                row[f"{name}_seconds"] = round(time.perf_counter() - began, 1)
                scores = [
                    pair_images(victim.space.decode(one.x).cpu(), victim.space.decode(x).cpu()).scores.mean("ssim")
                    for one, (x, _) in zip(found, batches, strict=True)
                ]
                row[name], row[f"{name}_ssim"] = found[0].notes[0], round(sum(scores) / len(scores), 4)
                row[f"{name}_spread"] = [round(one, 3) for one in sorted(scores)]
            append_lines(asked.out, row)
            print(spec, asked.batch, seed, *(row.get(f"{n}_ssim") for n in ("static", "adaptive", "null")), flush=True)


def _embedded(device: str) -> tuple[Setup, torch.Tensor]:
    setup = embedded(Case(model="cnn", device=device))
    return setup, setup.images[-OTHERS:]


def _given(train: Path, test: Path, device: str) -> tuple[Setup, torch.Tensor]:
    """The attacked images are those of ``test``, the auxiliary ones those of ``train``."""
    others, private = (np.load(file) for file in (train, test))
    space = Pixels((3, 32, 32), mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    victim = Victim(LeNet(in_channels=3, side=32, classes=10).to(device), space, name="lenet, fresh")
    images, labels = torch.from_numpy(private["images"]).float() / 255, torch.from_numpy(private["labels"]).long()
    setup = replace(embedded(Case(model="cnn")), victim=victim, images=images, labels=labels)
    return setup, torch.from_numpy(others["images"]).float() / 255


if __name__ == "__main__":
    main()
