"""Directions of one image that its gradient determines: all of them decomposed, or first a third.

    python -m benchmarks.directions [--rounds 3] [--out results.jsonl]

Photographs of 32 × 32 in colour (3,072 values). ``few``: the network of docs/quick_start.md, whose gradient determines 679 directions;
``many``: one with more features and none that are cut off, whose gradient determines more than a third, so that the first look is in
vain. Alternating in one process, one thread; seconds of the process, median of rounds with the range of the ratios. Both ways must name
the same number of directions.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch import nn

from benchmarks.json_lines import append_lines, print_and_append
from leakgauge.audit.identifiability import identify
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim
from leakgauge.data.embedded import photographs

NETWORKS: dict[str, tuple[int, int, nn.Module]] = {"few": (8, 4, nn.ReLU()), "many": (5, 2, nn.Tanh())}
"""Channels and stride of the convolution, and what follows it."""
LARGE = "leakgauge.measures.spectrum.LARGE"


def victim(channels: int, stride: int, activation: nn.Module) -> Victim:
    torch.manual_seed(0)
    side = (32 - 5) // stride + 1
    layers = nn.Conv2d(3, channels, 5, stride), activation, nn.Flatten(), nn.Linear(channels * side**2, 10)
    return Victim(nn.Sequential(*layers), Pixels((3, 32, 32)))


def timed(attacked: Victim) -> tuple[float, int]:
    x, y = attacked.space.encode(photographs(32)[:1]), torch.tensor([3])
    began = time.process_time()
    facts, _, _ = identify(attacked, Gradient(), x, y)
    return time.process_time() - began, facts.above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    append_lines(options.out, {"torch": str(torch.__version__), "device": "CPU", "threads": 1, "seed": 0})
    for name, network in NETWORKS.items():
        attacked, taken = victim(*network), {"third_first": list[float](), "all": list[float]()}
        found = set[int]()
        for _ in range(options.rounds):
            for way, seconds in taken.items():
                with patch(LARGE, 10**9) if way == "all" else patch(LARGE, 512):
                    spent, above = timed(attacked)
                seconds.append(spent)
                found.add(above)
        (above,) = found
        ratios = [slow / fast for fast, slow in zip(taken["third_first"], taken["all"], strict=True)]
        row: dict[str, object] = {"case": name, "values": 3072, "determined": above, "rounds": options.rounds}
        row |= {f"{way}_s": round(median(seconds), 2) for way, seconds in taken.items()}
        print_and_append(
            options.out, row | {"times": [round(r, 2) for r in (median(ratios), min(ratios), max(ratios))]}
        )


if __name__ == "__main__":
    main()
