"""How well the attacks do at home: PSNR of each on ten held-out Fashion-MNIST images of ten classes, beside its null run.

python -m benchmarks.attacks [--images 10] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

from torch import nn

from benchmarks.json_lines import write_lines
from leakgauge.attacks import dlg, inverting_gradients, linear, r_gap
from leakgauge.audit.null import null_run
from leakgauge.audit.scoring import score
from leakgauge.audit.session import one_of_each_class
from leakgauge.channels import Gradient
from leakgauge.core import Attack, Pixels, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.models.lenet import LeNet
from leakgauge.models.mlp import MLP
from leakgauge.models.pretrained import pretrained

PLAIN, NORMALISED = Pixels((1, 28, 28)), Pixels((1, 28, 28), mean=MEAN, std=STD)
CASES: dict[str, tuple[Callable[[], nn.Module], Pixels, Attack]] = {
    "inverting_gradients on the embedded CNN": (
        lambda: pretrained("cnn"),
        NORMALISED,
        inverting_gradients(steps=500, tv=0.01),
    ),
    "dlg on an untrained sigmoid LeNet": (lambda: LeNet(in_channels=1, side=28), PLAIN, dlg(steps=20, restarts=8)),
    "linear on an untrained MLP": (MLP, PLAIN, linear()),
    "r_gap on an untrained sigmoid LeNet": (lambda: LeNet(in_channels=1, side=28), PLAIN, r_gap()),
}


def shown(decibel: float) -> float | str:
    return round(decibel, 1) if math.isfinite(decibel) else "inf"


def measured(name: str, count: int, first: int) -> dict[str, object]:
    make, space, attack = CASES[name]
    victim = Victim(make(), space)
    images, labels = fashion("test")
    order = one_of_each_class(labels)[first : first + count]
    x, y = space.encode(images[order]), labels[order]
    found: list[float] = []
    nothing: list[float] = []
    for i in range(count):
        own = slice(i, i + 1)
        seen = share(victim, Gradient(), x[own], y[own])
        found += score(attack(victim, seen), x[own], y[own], space=space).psnr
        nothing += score(null_run(attack, victim, seen, seed=0), x[own], y[own], space=space).psnr
    return {
        "case": name,
        "first": first,
        "attack": repr(attack),
        "psnr": [shown(v) for v in found],
        "null_psnr": [shown(v) for v in nothing],
        "mean": shown(sum(found) / count),
        "null_mean": shown(sum(nothing) / count),
        "over_30_db": sum(v >= 30 for v in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="how many images, one of each class in turn, to pass over")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines: list[dict[str, object]] = [{"command": f"python -m benchmarks.attacks --first {options.first}"}]
    for name in CASES:
        lines.append(measured(name, options.images, options.first))
        print(json.dumps(lines[-1]), flush=True)
    write_lines(options.out, lines)


if __name__ == "__main__":
    main()
