"""What falling total variation and the gradient at the output add to inverting gradients, on the embedded networks.

    python -m benchmarks.falling_variation [--models cnn vgg vit] [--images 4] [--steps 1000] [--out FILE]
    python -m benchmarks.falling_variation --quick        some seconds, to see it run
    python -m benchmarks.falling_variation --show FILE    the table of what was measured

Trained networks, eval mode, one image at a time, labels read, one restart, the same number of steps for every attack. The attacks differ in
one thing from row to row. On CIFAR-10's ResNet18 the same search is the positive control of reproductions/practical_feasibility.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.json_lines import read_lines, write_lines
from leakgauge.attacks import falling_variation, inverting_gradients
from leakgauge.audit.case import Case
from leakgauge.audit.scoring import score
from leakgauge.audit.session import embedded
from leakgauge.channels import Gradient
from leakgauge.core import Attack, Size, share
from leakgauge.inversion import BalancedCosine, TotalVariation

FIRST = 40
"""Images before it were used to choose settings of other attacks."""


def attacks(steps: int) -> dict[str, Attack]:
    plain = inverting_gradients(steps=steps, tv=0.01)
    along = replace(plain, along=True)
    return {
        "inverting_gradients, tv 0.1": inverting_gradients(steps=steps, tv=0.1),
        "inverting_gradients, tv 0.01": plain,
        "… along the output's gradient": along,
        "… and balanced": replace(along, objective=BalancedCosine(0.5) + 0.01 * TotalVariation()),
        "falling_variation": falling_variation(steps=steps),
    }


def measured(model: str, *, images: int, steps: int) -> list[dict[str, object]]:
    setup = embedded(Case(model=model))
    victim = setup.victim
    rows = []
    for name, attack in attacks(steps).items():
        each = []
        for number in range(FIRST, FIRST + images):
            x, y = victim.space.encode(setup.images[number : number + 1]), setup.labels[number : number + 1]
            seen = share(victim, Gradient(), x, y, reveal=[Size()])
            each.append(score(attack(victim, seen, seed=0), x, y, space=victim.space))
        rows.append(
            {
                "model": model, "attack": name, "images": images, "first": FIRST, "steps": steps, "seed": 0, "torch": torch.__version__,
                "ssim": statistics.mean(one.ssim[0] for one in each), "psnr": statistics.mean(one.psnr[0] for one in each),
                "each_ssim": [round(one.ssim[0], 4) for one in each],
            }
        )  # fmt: skip
    return rows


def table(rows: Sequence[dict[str, object]]) -> str:
    names = list(dict.fromkeys(str(row["attack"]) for row in rows))
    models = list(dict.fromkeys(str(row["model"]) for row in rows))
    lines = [f"| SSIM (PSNR in dB) | {' | '.join(models)} |", "|---|" + "---|" * len(models)]
    for name in names:
        cells = [
            f"{row['ssim']:.2f} ({row['psnr']:.1f})"
            for model in models
            for row in rows
            if (row["model"], row["attack"]) == (model, name)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cnn", "vgg", "vit"])
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args(arguments)
    if given.show is not None:
        print(table(read_lines(given.show)))
        return
    if given.quick:
        given.models, given.images, given.steps = ["cnn"], 1, 8
    rows: list[dict[str, object]] = []
    for model in given.models:
        rows += measured(model, images=given.images, steps=given.steps)
        write_lines(given.out, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
