"""Reproduces the experiments of "Golden Partition Zone" on one GPU, part by part, and goes on where it stopped.

    python -m reproductions.golden_partition_zone.run --data FOLDER --part vgg19-curve --budget 900
    python -m reproductions.golden_partition_zone.run --quick --part vgg19-curve      # a minute on a CPU, means nothing

``--data`` is a folder with ``cifar10_*.zip`` (sheets of 10 × 10 pictures and ``labels.npy``), ``kmnist_test.npz``, ``mnist.npz`` and
``smile_faces64_4000.zip``, or all 60,000 images of CIFAR-10 as one npz (bytes ``x``, labels ``y``). CIFAR-10 is split 40k / 10k / 10k into
what the victim trains on, what the adversary owns, and what is attacked. Every result is one JSON line, written when it is there; lines
that are there are not measured again. Several calls may run side by side with the same results and weights.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from reproductions.golden_partition_zone import decoder_tables, parts, zone_part
from reproductions.golden_partition_zone.leaks import Ledger
from reproductions.golden_partition_zone.study import BudgetSpent, Files, Study
from reproductions.golden_partition_zone.targets import BATCH, Shelf

RESULTS = Path(__file__).parent / "results" / "run.jsonl"
WEIGHTS = Path("leakgauge-runs/golden_partition_zone")

PARTS: dict[str, Callable[[Study], None]] = {
    "vgg19-curve": parts.vgg19_curve,
    "ir152-curve": parts.ir152_curve,
    "ir152-epochs": parts.ir152_epochs,
    "vit-curve": parts.vit_curve,
    "predictions": decoder_tables.predictions,
    "enhancements": decoder_tables.enhancements,
    "attention": decoder_tables.attention,
    "zone": zone_part.zone,
    "classes": parts.classes,
    "auxiliary": parts.auxiliary,
    "faces": parts.faces,
    "vgg19-smoothing": parts.vgg19_smoothing,
}


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the data, or CIFAR-10 alone")
    parser.add_argument(
        "--part", action="append", choices=list(PARTS), help="may be given more than once; all if not given"
    )
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds for all parts of this call")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of VGG19 that differ in their seed alone")
    parser.add_argument("--target-epochs", type=int, help="epochs of every target, in place of those of its recipe")
    parser.add_argument("--decoder-epochs", type=int, default=30, help="the paper trains 100")
    parser.add_argument("--batch", type=int, default=BATCH, help="batch of the target's training")
    parser.add_argument("--results", type=Path, help="file of the results; results/run.jsonl if not given")
    parser.add_argument("--pictures", type=Path, help="folder for a few reconstructions of every decoder of seed 0")
    parser.add_argument("--weights", type=Path, help=f"folder of the trained networks; {WEIGHTS} if not given")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few embedded images, one epoch; kept only where a file or folder is named",
    )
    return parser.parse_args(arguments)


def study_of(options: argparse.Namespace, scratch: Path) -> Study:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    results, weights = options.results, options.weights
    if options.quick:
        results, weights = results or scratch / "run.jsonl", weights or scratch
        shelf, ledger = Shelf(weights, device, 8, 1), Ledger(results, quick=True)
        return Study(Files(), shelf, ledger, device, 1, 1, quick=True, pictures=options.pictures)
    return Study(
        files=Files.of(options.data),
        shelf=Shelf(weights or WEIGHTS, device, options.batch, options.target_epochs),
        ledger=Ledger(results or RESULTS),
        device=device,
        seeds=options.seeds,
        decoder_epochs=options.decoder_epochs,
        pictures=options.pictures,
    )


def main(arguments: list[str] | None = None) -> Ledger:
    options = options_of(arguments)
    chosen = options.part or list(PARTS)
    deadline = time.monotonic() + options.budget
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:  # a quick try leaves nothing behind
        study = study_of(options, Path(scratch))
        study.deadline = deadline
        for name in chosen:
            began = time.monotonic()
            try:
                PARTS[name](study)
                print(f"== {name}: complete after {time.monotonic() - began:.0f} s", flush=True)
            except BudgetSpent:
                print(f"== {name}: budget spent after {time.monotonic() - began:.0f} s; run again to go on", flush=True)
            except (RuntimeError, ValueError, OSError):  # told in full and at the end; the other parts need not suffer
                traceback.print_exc()
                print(f"== {name}: failed after {time.monotonic() - began:.0f} s", flush=True)
                failed.append(name)
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}")
    return study.ledger


if __name__ == "__main__":
    # asked to end, it leaves by itself: a process that dies within a kernel may take others on the same GPU along
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
