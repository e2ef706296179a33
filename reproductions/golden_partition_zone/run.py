"""Reproduces the experiments of "Golden Partition Zone" on one GPU, part by part, and goes on where it stopped.

    python reproductions/golden_partition_zone/run.py --data cifar10.npz --part vgg19-curve --budget 900
    python reproductions/golden_partition_zone/run.py --quick --part vgg19-curve      # a minute on a CPU, means nothing

``--data`` is anything that ``leakgauge.data.read`` takes, best one npz with all 60,000 images as ``x`` (bytes) and their
labels as ``y``. They are split 40k / 10k / 10k into what the victim trains on, what the adversary owns, and what is attacked.
Every result is one JSON line, written when it is there; lines that are there are not measured again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from leaks import Ledger
from parts import PARTS, BudgetSpent, Files, Study
from targets import Shelf

RESULTS = Path(__file__).parent / "results" / "run.jsonl"


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="CIFAR-10, all 60,000 images")
    parser.add_argument("--kmnist", type=Path, help="Kuzushiji-MNIST, for the part 'auxiliary'")
    parser.add_argument("--mnist", type=Path, help="MNIST, for the part 'auxiliary'")
    parser.add_argument("--faces", type=Path, help="grey faces with two labels, for the part 'faces'")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="may be given more than once; all if not given"
    )
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for each part")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of VGG19 that differ in their seed alone")
    parser.add_argument("--target-epochs", type=int, help="epochs of every target; else 40, 40 and 100 (ViT)")
    parser.add_argument("--decoder-epochs", type=int, default=50, help="the paper trains 100")
    parser.add_argument("--batch", type=int, default=256, help="batch of the target's training")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--weights", type=Path, default=Path("leakgauge-runs/golden_partition_zone"))
    parser.add_argument("--quick", action="store_true", help="a few embedded images, one epoch; results go nowhere")
    return parser.parse_args(arguments)


def study_of(options: argparse.Namespace, scratch: Path) -> Study:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.quick:
        shelf, results, epochs, seeds = Shelf(scratch, device, 8, 1), scratch / "run.jsonl", 1, 1
    else:
        shelf = Shelf(options.weights, device, options.batch, options.target_epochs)
        results, epochs, seeds = options.results, options.decoder_epochs, options.seeds
    files = Files(options.data, options.kmnist, options.mnist, options.faces)
    return Study(files, shelf, Ledger(results), device, seeds, epochs, options.quick)


def main(arguments: list[str] | None = None) -> Ledger:
    options = options_of(arguments)
    with tempfile.TemporaryDirectory() as scratch:  # a quick try leaves nothing behind
        study = study_of(options, Path(scratch))
        for name in options.part or PARTS:
            began = time.monotonic()
            study.deadline = began + options.budget
            try:
                PARTS[name](study)
                print(f"== {name}: complete after {time.monotonic() - began:.0f} s", flush=True)
            except BudgetSpent:
                print(f"== {name}: budget spent after {time.monotonic() - began:.0f} s; run again to go on", flush=True)
    return study.ledger


if __name__ == "__main__":
    main()
