"""All estimators of mutual information on the committed samples of the bmi benchmark, whose truth is known.

python -m benchmarks.mutual_information [--seeds 1] [--estimators NAME ...] [--tasks NAME ...] [--out FILE]

Prints one table: mean held-out value over seeds, and the in-sample value of the first seed behind a slash. A seed changes the
split and the critic, not the samples.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakgauge.measures.mutual_information import ESTIMATORS

FIXTURES = Path(__file__).parents[1] / "tests" / "measures" / "mutual_information" / "fixtures" / "bmi.npz"


def samples() -> dict[str, tuple[Tensor, Tensor, float]]:
    """Both sides and the true information of every task."""
    with np.load(FIXTURES) as stored:
        names = [name.removesuffix(".nats") for name in stored if name.endswith(".nats")]
        sides = {
            name: tuple(torch.from_numpy(stored[f"{name}.{s}"].astype(np.float64)) for s in "xy") for name in names
        }
        return {name: (*sides[name], float(stored[f"{name}.nats"])) for name in names}  # pyright: ignore[reportReturnType]


def main() -> None:
    torch.set_num_threads(1)
    tasks = samples()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--estimators", nargs="+", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    parser.add_argument("--tasks", nargs="+", choices=list(tasks), default=list(tasks))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines: list[str] = []
    print(f"| task (pairs, true nats) | {' | '.join(options.estimators)} |\n|{'---|' * (1 + len(options.estimators))}")
    for task in options.tasks:
        a, b, truth = tasks[task]
        cells: list[str] = []
        for name in options.estimators:
            found = []
            for seed in range(options.seeds):
                began = time.process_time()
                estimate = ESTIMATORS[name]()(a, b, seed=seed)
                seconds = time.process_time() - began
                found.append(estimate)
                row = {"task": task, "truth": truth, "estimator": name, "seed": seed, "nats": estimate.nats}
                row |= {"low": estimate.low, "high": estimate.high, "in_sample": estimate.in_sample, "n": estimate.n}
                lines.append(json.dumps(row | {"cpu_seconds": round(seconds, 2)}))
            cells.append(f"{sum(e.nats for e in found) / len(found):.2f} / {found[0].in_sample:.2f}")
        print(f"| {task} ({len(a)}, {truth:.2f}) | {' | '.join(cells)} |", flush=True)
    if options.out is not None:
        options.out.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
