"""How much more a server sees of one batch in several rounds: reconstruction over T rounds against one.

    python benchmarks/rounds.py [--quick] [--out rounds.jsonl]

The embedded model's architecture at fresh weights. Between rounds the server trains it on other images (SGD, ``STEPS`` steps of 64,
rate 0.05), and the same private batch of Fashion-MNIST is shared in every round. Labels are read. One search with the same settings and
as many steps for every number of rounds (inverting gradients at its defaults but for the steps; chosen on no image). Batches are drawn by
seed. Ten rounds cost ten times one.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from leakgauge import Pixels, Victim
from leakgauge.attacks import inverting_gradients
from leakgauge.audit.evaluate import read_in_rounds
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import score, trivial_baseline
from leakgauge.audit.verdict import judge
from leakgauge.channels import Gradient, share_rounds
from leakgauge.data import MEAN, STD, fashion
from leakgauge.defenses import GaussianNoise
from leakgauge.models.cnn import CNN
from leakgauge.models.seeded import seeded

STEPS = 5


def trajectory(rounds: int, *, seed: int) -> list[Victim]:
    """The victims of all rounds: the weights that the server had sent."""
    space = Pixels((1, 28, 28), mean=MEAN, std=STD)
    with seeded(seed):
        model = CNN()
    images, labels = fashion("train")
    others = space.encode(images), labels
    rng, found = torch.Generator().manual_seed(seed), list[Victim]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(rounds):
        found.append(Victim(model, space, name="cnn"))
        for _ in range(STEPS):
            rows = torch.randint(len(others[0]), (64,), generator=rng)
            optimizer.zero_grad()
            F.cross_entropy(model(others[0][rows]), others[1][rows]).backward()
            optimizer.step()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 2, 5, 10])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--noise", type=float, default=0.0, help="noise relative to each update")
    parser.add_argument("--out", type=Path, default=Path("rounds.jsonl"))
    options = parser.parse_args()
    images, labels = fashion("test")
    steps = 20 if options.quick else options.steps
    for seed in options.seeds[: 1 if options.quick else None]:
        chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[: options.batch]
        victims = trajectory(max(options.rounds), seed=seed)
        x, y = victims[0].space.encode(images[chosen]), labels[chosen]
        defenses = (GaussianNoise(relative=options.noise),) if options.noise else ()
        attack = inverting_gradients(steps=steps)
        for count in options.rounds:
            began = time.perf_counter()
            rounds = share_rounds(victims[:count], Gradient(), x, y, defenses=defenses, seed=seed)
            victim, seen = rounds.joint()
            seen = replace(seen, labels=read_in_rounds(rounds, seed=seed))
            found = attack(victim, seen, seed=seed)
            nothing = null_run(attack, victim, seen, seed=seed)
            scores, null = (score(one, x, y, space=victim.space) for one in (found, nothing))
            verdict = judge(scores, null, trivial_baseline(images[chosen]), seen.assumptions)
            row = {
                "model": "cnn", "batch": options.batch, "rounds": count, "noise": options.noise, "steps": steps, "seed": seed,
                "ssim": round(scores.mean("ssim"), 4), "psnr": round(scores.mean("psnr"), 3), "null": round(null.mean("ssim"), 4),
                "labels": scores.mean("labels"), "outcome": verdict.outcome.value, "mismatch": round(found.loss, 5),
                "seconds": round(time.perf_counter() - began, 1),
            }  # fmt: skip
            print(json.dumps(row), flush=True)
            with options.out.open("a") as lines:
                lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
