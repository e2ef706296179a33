"""Time of the engine against batch size and resolution, beside the plain loop and beside the roofline.

    python -m benchmarks.scaling [--quick] [--out scaling.jsonl]

Every row: seconds per restart and step, the plain loop's in the same process (alternating, median of rounds, spread), and
the least time that the same kernels would need at the measured ceilings of the device (``floor``). Needs torch and numpy.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import CASES, DEVICE, PRECISIONS, Case, clock, our_search, plain_step, prepared, rounds
from benchmarks.json_lines import write_lines
from benchmarks.roofline import Ceilings, ceilings, work
from leakgauge.models.vit import ViT
from reproductions.common.networks.resnet import ResNet18


def vit(side: int) -> Case:
    return Case(lambda: ViT(in_channels=3, side=side, patch=4, width=384, depth=4, heads=6), side)


def resnet(side: int) -> Case:
    return Case(lambda: ResNet18(pre_activation=True), side)


def with_batch(case: Case, batch: int) -> Case:
    return Case(case.make, case.side, batch, case.mode)


SWEEPS: dict[tuple[str, str], list[tuple[int, Case]]] = {
    ("vit", "batch"): [(b, with_batch(CASES["vit"], b)) for b in (1, 2, 4, 8, 16)],
    ("resnet18_pre", "batch"): [(b, with_batch(CASES["resnet18_pre"], b)) for b in (1, 2, 4, 8, 16)],
    ("vit", "side"): [(side, vit(side)) for side in (16, 32, 48, 64)],
    ("resnet18_pre", "side"): [(side, resnet(side)) for side in (32, 64, 96, 128)],
    ("resnet18_224", "as benchmarked"): [(224, CASES["resnet18_224"])],
    ("vit_b16_224", "as benchmarked"): [(224, CASES["vit_b16_224"])],
}


def measured(
    case: Case, precision: str, restarts: int, ceiling: Ceilings, *, count: int, seconds: float
) -> dict[str, Any]:
    victim, _, y, observed = prepared(case)
    with PRECISIONS["fp32"].inside(DEVICE):
        plain = plain_step(victim, observed, y, "cosine")
        plain()
    how = PRECISIONS[precision]
    with how.inside(DEVICE):
        search = our_search(victim, observed, y, "cosine", restarts)
        counted = work(search.eager, ceiling)
        for number in range(5 if DEVICE.type == "cuda" else 1):
            search.move(number)

    def ours() -> None:
        with how.inside(DEVICE):
            search.move(1)

    def one_plain() -> None:
        with PRECISIONS["fp32"].inside(DEVICE):
            plain()

    taken = rounds({"plain": one_plain, "ours": ours}, count=count, seconds=seconds)
    mine = [t / restarts for t in taken["ours"]]
    return {
        "plain_ms": round(1e3 * statistics.median(taken["plain"]), 4),
        "ours_ms_per_restart": round(1e3 * statistics.median(mine), 5),
        "ours_ms_lowest": round(1e3 * min(mine), 5),
        "ours_ms_highest": round(1e3 * max(mine), 5),
        "floor_ms_per_restart": round(1e3 * counted.floor / restarts, 5),
        "times_the_floor": round(statistics.median(mine) * restarts / counted.floor, 2),
        "gflop_per_restart": round(counted.flops / restarts / 1e9, 3),
        "megabytes_per_restart": round(counted.bytes / restarts / 1e6, 2),
        "kernels": counted.kernels,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one sweep of two points, two short rounds")
    parser.add_argument("--restarts", type=int, default=32)
    parser.add_argument("--precisions", default="fp32,tf32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sweeps = SWEEPS
    small: dict[str, int] = {}
    if options.quick:
        sweeps = {("vit", "batch"): SWEEPS["vit", "batch"][:2]}
        options.restarts, options.precisions, options.rounds, options.seconds = 4, "fp32", 2, 0.05
        small = {"side": 512, "megabytes": 64}
    results: list[dict[str, Any]] = []
    for precision in options.precisions.split(","):
        with PRECISIONS[precision].inside(DEVICE):
            ceiling = ceilings(DEVICE, **small)
        for (name, axis), points in sweeps.items():
            for value, case in points:
                began = clock()
                row = {"case": name, "axis": axis, "value": value, "precision": precision, "restarts": options.restarts}
                try:
                    row |= measured(
                        case, precision, options.restarts, ceiling, count=options.rounds, seconds=options.seconds
                    )
                except torch.OutOfMemoryError:
                    row |= {"error": "out of memory"}
                gc.collect()  # a recorded step holds itself; its memory is wanted for the next case
                if DEVICE.type == "cuda":
                    torch.cuda.empty_cache()
                row |= {
                    "ceiling_tflops": round(ceiling.flops / 1e12, 1),
                    "ceiling_terabytes": round(ceiling.bytes / 1e12, 2),
                    "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU",
                    "seconds": round(clock() - began, 1),
                }
                results.append(row)
                print(json.dumps(row), flush=True)
                write_lines(options.out, results)  # after every row: a long run may be cut short


if __name__ == "__main__":
    main()
