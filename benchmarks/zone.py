"""Finding the zone: the search of ``find_zone`` against full decoders at every cut and against bisection by depth.

python benchmarks/zone.py [--quick] [--epochs 12] [--threshold 0.25 …] [--out benchmarks/results/zone_cpu.jsonl]

All use the same decoders on the same features (embedded VGG, all 23 cuts, 800 auxiliary and 200 attacked images). Decoders of
every cut are really trained for ``--epochs``, and searches with that effort should name the same cut. ``--threshold-at-100`` runs the
search with the paper's 100 epochs too; what decoders of every cut would take there is extrapolated from the CPU time of their
epochs, and said to be.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from leakgauge.attacks.decoder import DecoderInverter
from leakgauge.audit.case import Case
from leakgauge.audit.scan_run import parted
from leakgauge.integrations.setups import find
from leakgauge.split import Attacker, cuts, scan
from leakgauge.split.zone import Zone, bisect, exhaustive, find_zone

PAPER = 100
"""Epochs of a decoder in the split-inference paper."""


@dataclass
class Timed:
    """Decoders with their CPU seconds; each (cut, epochs) is trained once and remembered with what it took."""

    attacker: Attacker
    seconds: dict[tuple[str, int], float] = field(default_factory=dict)
    found: dict[tuple[str, int], float] = field(default_factory=dict)

    def __call__(self, cut: str, epochs: int) -> float:
        if (cut, epochs) not in self.found:
            began = time.process_time()
            self.found[cut, epochs] = self.attacker(cut, epochs)
            self.seconds[cut, epochs] = time.process_time() - began
        return self.found[cut, epochs]

    def cost(self, zone: Zone) -> float:
        """CPU seconds of all decoders that a search trained; the same decoder costs each search the same."""
        return sum(self.seconds[trial.cut, trial.epochs] for trial in zone.trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four cuts and 3 epochs, a check that it runs")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--threshold", type=float, nargs="+", default=[0.1, 0.15, 0.2, 0.25, 0.4])
    parser.add_argument(
        "--threshold-at-100",
        type=float,
        nargs="*",
        default=[],
        help="also search with the paper's effort; minutes each",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    epochs = 3 if options.quick else options.epochs
    setup = find(Case(model="vgg", seed=options.seed))
    auxiliary, test = parted(setup)
    names = [cut.name for cut in cuts(setup.victim)][:: 7 if options.quick else 1]
    lines: list[dict[str, Any]] = []

    began = time.process_time()
    curve = [row.fvu for row in scan(setup.victim, auxiliary, test, names, seed=options.seed).rows]
    ridge = time.process_time() - began
    print(f"ridge at {len(names)} cuts: {ridge:.1f} CPU seconds")

    with tempfile.TemporaryDirectory() as folder:
        attacker = Attacker(
            setup.victim, auxiliary, test, DecoderInverter(), folder=Path(folder), seed=options.seed
        )  # fmt: skip
        timed = Timed(attacker)
        rungs = tuple(sorted({r for r in (1, 3) if r < epochs} | {epochs}))
        lines += [_compare(names, curve, timed, threshold, rungs, ridge) for threshold in options.threshold]
        full = 5 if options.quick else PAPER
        lines += [_at_paper(names, curve, timed, t, epochs, full, ridge) for t in options.threshold_at_100]
    rows = [
        {
            "cut": name,
            "ridge": ridge_fvu,
            "decoder": timed.found[name, epochs],
            "cpu_seconds": timed.seconds[name, epochs],
        }
        for name, ridge_fvu in zip(names, curve, strict=True)
    ]
    about = {
        "cuts": len(names), "epochs": epochs, "rungs": rungs, "ridge_cpu_seconds": ridge, "auxiliary": len(auxiliary.images),
        "tested": len(test.images), "seed": options.seed, "torch": torch.__version__, "threads": 1,
    }  # fmt: skip
    if options.out is not None:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in [about, *rows, *lines]), encoding="utf-8")


def _compare(
    names: list[str], curve: list[float], timed: Timed, threshold: float, rungs: tuple[int, ...], ridge: float
) -> dict[str, Any]:
    ways: dict[str, Callable[[], Zone]] = {
        "exhaustive": lambda: exhaustive(names, _best(names, curve, timed), threshold=threshold, epochs=rungs[-1]),
        "find_zone": lambda: find_zone(names, curve, timed, threshold=threshold, rungs=rungs),
        "find_zone, one cut at a time": lambda: find_zone(
            names, curve, timed, threshold=threshold, rungs=rungs, ahead=1
        ),
        "bisection": lambda: bisect(names, _best(names, curve, timed), threshold=threshold, epochs=rungs[-1]),
        "bisection, decoders alone": lambda: bisect(names, timed, threshold=threshold, epochs=rungs[-1]),
        "exhaustive, decoders alone": lambda: exhaustive(names, timed, threshold=threshold, epochs=rungs[-1]),
    }
    line: dict[str, Any] = {"threshold": threshold}
    for name, way in ways.items():
        zone = way()
        with_ridge = 0.0 if "alone" in name else ridge
        line[name] = {"cut": zone.recommended, "epochs": zone.spent, "cpu_seconds": timed.cost(zone) + with_ridge}
    whole = line["exhaustive"]["cpu_seconds"]
    line["ratio"] = whole / line["find_zone"]["cpu_seconds"]
    line["ratio_one_at_a_time"] = whole / line["find_zone, one cut at a time"]["cpu_seconds"]
    line["ratio_of_bisection"] = whole / line["bisection"]["cpu_seconds"]
    line["same_cut"] = line["exhaustive"]["cut"] == line["find_zone"]["cut"]
    print(
        f"threshold {threshold:g}: "
        + "; ".join(f"{way} {line[way]['cut']} {line[way]['cpu_seconds']:.1f} s" for way in ways)
        + f"; {line['ratio']:.1f}x less than exhaustive ({line['ratio_one_at_a_time']:.1f}x one at a time), "
        f"bisection {line['ratio_of_bisection']:.1f}x"
    )
    return line


def _best(names: list[str], curve: list[float], timed: Timed) -> Callable[[str, int], float]:
    """Decoder or ridge, whichever reads more: the reference must know what the search knows."""
    return lambda cut, epochs: min(timed(cut, epochs), curve[names.index(cut)])


def _at_paper(
    names: list[str], curve: list[float], timed: Timed, threshold: float, measured: int, epochs: int, ridge: float
) -> dict[str, Any]:
    """The search with the paper's effort, run; against decoders of every cut, whose time is extrapolated from ``measured`` epochs."""
    whole = ridge + sum(timed.seconds[name, measured] / measured * epochs for name in names)
    rungs = (*(r for r in (1, 3, 12) if r < epochs), epochs)
    line: dict[str, Any] = {"threshold": threshold, "epochs": epochs, "exhaustive_extrapolated": whole}
    for name, ahead in (("find_zone", 3), ("find_zone, one cut at a time", 1)):
        zone = find_zone(names, curve, timed, threshold=threshold, rungs=rungs, ahead=ahead)
        spent = timed.cost(zone) + ridge
        trials = [(trial.cut, trial.epochs, trial.fvu) for trial in zone.trials]
        line[name] = {"cut": zone.recommended, "cpu_seconds": spent, "ratio": whole / spent, "trials": trials}
        print(
            f"{epochs} epochs, threshold {threshold:g}: {name} {zone.recommended} {spent:.0f} s; "
            f"every cut {whole:.0f} s (extrapolated), {whole / spent:.1f}x"
        )
    return line


if __name__ == "__main__":
    main()
