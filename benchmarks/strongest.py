"""Whether ``strongest`` keeps up with the best single recipe at the same cost, on the embedded models.

    python -m benchmarks.strongest [--part reported] [--steps 500] [--batches 2] [--out FILE]
    python -m benchmarks.strongest --from FILE

Grid: the three embedded models in eval mode × batches of 1 and 4 × no defense, Gaussian noise of a tenth of the gradient's norm, the
smallest 90 % of the gradient set to zero. Every attack replays the channel ``--steps`` times (a step of L-BFGS replays it 20 times);
labels are read, not given. Single recipes are those that race in ``strongest``. The score is the mean SSIM of a batch after pairing.
A cell is the mean over its batches; the best single recipe is chosen by the truth, cell by cell, which no attacker can do.

``--part tuned`` uses the images on which the constants of ``strongest`` were chosen; ``reported`` has none of them. Rows are appended
to ``--out`` one by one, and a run that was interrupted continues with the next.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.json_lines import kept_lines, print_and_append, read_lines
from leakgauge.attacks import dlg, inverting_gradients, strongest, tag_read_labels
from leakgauge.audit.scoring import score
from leakgauge.audit.session import one_of_each_class
from leakgauge.channels import Gradient
from leakgauge.core import Attack, Defense, Pixels, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.defenses import GaussianNoise, Prune
from leakgauge.inversion import LBFGS
from leakgauge.models.pretrained import PRETRAINED, pretrained

PARTS = {"reported": 300, "tuned": 100}
"""The first image of each part, in an order that takes one image of each class in turn."""
DEFENSES: dict[str, tuple[Defense, ...]] = {
    "none": (),
    "noise": (GaussianNoise(relative=0.1),),
    "prune": (Prune(0.9),),
}
OURS = "strongest"
BELOW = 0.05
"""Share of the best single recipe's SSIM that may be lost."""


def attacks(steps: int) -> dict[str, Attack]:
    return {
        OURS: strongest(steps=steps),
        "inverting_gradients:tv=0.1": inverting_gradients(steps=steps, tv=0.1),
        "inverting_gradients:tv=0.01": inverting_gradients(steps=steps, tv=0.01),
        "tag_read_labels": tag_read_labels(steps=steps),
        "dlg": dlg(steps=max(1, steps // LBFGS.iterations)),
    }


def measured(model: str, size: int, defense: str, number: int, name: str, *, part: str, steps: int) -> dict[str, Any]:
    space = Pixels((1, 28, 28), mean=MEAN, std=STD)
    victim = Victim(pretrained(model), space)
    pictures, classes = fashion("test")
    order = one_of_each_class(classes)[PARTS[part] + number * size :][:size]
    x, y = space.encode(pictures[order]), classes[order]
    seen = share(victim, Gradient(), x, y, defenses=DEFENSES[defense], seed=number)
    began = time.perf_counter()
    found = attacks(steps)[name](victim, seen, seed=number)
    taken = time.perf_counter() - began
    scores = score(found, x, y, space=space)
    return {
        "part": part, "steps": steps, "model": model, "batch": size, "defense": defense, "number": number, "attack": name,
        "ssim": round(scores.mean("ssim"), 4), "psnr": round(scores.mean("psnr"), 2), "seconds": round(taken, 1),
        "raced": [[one.name, one.steps, one.mismatch, one.chosen] for one in found.raced if not one.refused],
    }  # fmt: skip


KEY = ("part", "steps", "model", "batch", "defense", "number", "attack")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Mean SSIM of each cell: ours, the best single recipe by the truth, and each of them."""
    names = list(attacks(1))
    lines = [
        f"| model | batch | defense | {' | '.join(names)} | of the best |",
        "|---|---|---|" + "---|" * (len(names) + 1),
    ]
    held = 0
    cells = list(dict.fromkeys((row["model"], row["batch"], row["defense"]) for row in rows))
    for cell in cells:
        own = [row for row in rows if (row["model"], row["batch"], row["defense"]) == cell]
        by = {name: [row["ssim"] for row in own if row["attack"] == name] for name in names}
        mean = {name: sum(values) / len(values) for name, values in by.items() if values}
        share_ = mean[OURS] / max(value for name, value in mean.items() if name != OURS) if OURS in mean else 0.0
        held += share_ >= 1 - BELOW
        shown = [f"{mean[name]:.3f}" if name in mean else "–" for name in names]
        lines.append(f"| {' | '.join(map(str, (*cell, *shown)))} | {share_:.2f} |")
    return "\n".join(
        [*lines, "", f"Within {BELOW:.0%} of the best single recipe, or above it: {held} of {len(cells)} cells."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="reported")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batches", type=int, default=2, help="of each cell")
    parser.add_argument("--only", nargs="+", choices=list(attacks(1)), default=list(attacks(1)), help="attacks")
    parser.add_argument("--models", nargs="+", choices=list(PRETRAINED), default=list(PRETRAINED))
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 4])
    parser.add_argument(
        "--out", type=Path, help="append one JSON line per attack; those that are in it are not run again"
    )
    parser.add_argument("--from", dest="source", type=Path, help="print the table of an earlier --out file and stop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.source is not None:
        print(table(read_lines(options.source)))
        return
    rows = kept_lines(options.out)
    done = {tuple(row[key] for key in KEY) for row in rows}
    for number in range(options.batches):
        for size in options.sizes:
            for model in options.models:
                for defense in DEFENSES:
                    for name in options.only:
                        if (options.part, options.steps, model, size, defense, number, name) in done:
                            continue
                        row = measured(model, size, defense, number, name, part=options.part, steps=options.steps)
                        rows.append(row)
                        print_and_append(options.out, row)
    print(table(rows))


if __name__ == "__main__":
    main()
