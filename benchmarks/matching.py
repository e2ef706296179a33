"""Which recipe that matches gradients finds most, victim by victim: PSNR of each on the same images, weights and steps.

python -m benchmarks.matching [--seed 0] [--images 4] [--steps 300] [--out FILE]
python -m benchmarks.matching --quick              a minute or two, to see it run
python -m benchmarks.matching --show FILE [FILE …]   the table of what was measured

The seed sets the weights of an untrained victim and every start; each seed has images of its own, from the second ten on, as the options
of ``tag_read_labels`` were chosen on the first. One row is no recipe: TAG by the descent of ``tag_read_labels`` (rate falling,
pixels kept in range), to tell what that does from what the label does. L-BFGS evaluates 20 times a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from benchmarks.json_lines import read_lines, write_lines
from leakgauge.attacks import april, idlg, inverting_gradients, tag, tag_read_labels
from leakgauge.audit.scoring import score
from leakgauge.audit.session import one_of_each_class
from leakgauge.channels import Gradient
from leakgauge.core import Pixels, Victim, share
from leakgauge.data.embedded import MEAN, STD, fashion
from leakgauge.errors import Inapplicable
from leakgauge.inversion import Matching
from leakgauge.models.cnn import CNN
from leakgauge.models.lenet import LeNet
from leakgauge.models.pretrained import pretrained
from leakgauge.models.vit import ViT

PLAIN, NORMALISED = Pixels((1, 28, 28)), Pixels((1, 28, 28), mean=MEAN, std=STD)
FIRST, MOST = 10, 200.0
"""The first image, and what an exact reconstruction counts as, in dB."""
INNER = 20
"""Evaluations in one step of L-BFGS."""


def small_vit(seed: int, positions: float) -> ViT:
    """APRIL's model for MNIST, half as wide and half as deep."""
    return ViT(patch=7, width=192, depth=2, qkv_bias=False, final_norm=False, position_std=positions, seed=seed)


@dataclass(frozen=True)
class Target:
    """What is attacked: a model made from a seed, its space and the images of one gradient."""

    model: Callable[[int], nn.Module]
    space: Pixels = PLAIN
    batch: int = 1


TARGETS = {
    "untrained ViT, positions of scale 1": Target(lambda seed: small_vit(seed, 1.0)),
    "the same, a batch of 4": Target(lambda seed: small_vit(seed, 1.0), batch=4),
    "untrained ViT, positions of scale 0.02": Target(lambda seed: small_vit(seed, 0.02)),
    "embedded ViT, trained": Target(lambda seed: pretrained("vit"), NORMALISED),
    "untrained sigmoid LeNet": Target(lambda seed: LeNet(in_channels=1, side=28, seed=seed)),
    "untrained CNN": Target(lambda seed: CNN(seed=seed), NORMALISED),
    "embedded CNN, trained": Target(lambda seed: pretrained("cnn"), NORMALISED),
}


def recipes(steps: int) -> dict[str, Matching]:
    ours = tag_read_labels(steps=steps)
    return {
        "tag_read_labels": ours,
        "tag": tag(steps=steps),
        "tag, that descent": replace(tag(), solver=ours.solver),
        "april": april(steps=steps),
        "idlg": idlg(steps=max(1, steps // INNER)),
        "inverting_gradients, tv=0.01": inverting_gradients(steps=steps, tv=0.01),
    }


@dataclass(frozen=True)
class Row:
    """PSNR of each image, how many labels were right, or why the attack was refused."""

    victim: str
    recipe: str
    seed: int
    attack: str
    psnr: tuple[float, ...] = ()
    labels: int = 0
    refused: str = ""


def measured(victim_name: str, name: str, recipe: Matching, *, seed: int, images: int) -> Row:
    target = TARGETS[victim_name]
    victim = Victim(target.model(seed), target.space)
    pictures, classes = fashion("test")
    count = target.batch if target.batch > 1 else images
    order = one_of_each_class(classes)[FIRST + seed * images :][:count]
    x, y = target.space.encode(pictures[order]), classes[order]
    row = Row(victim_name, name, seed, repr(recipe))
    parts = [slice(at, at + target.batch) for at in range(0, count, target.batch)]
    try:
        found = recipe.many(victim, [share(victim, Gradient(), x[own], y[own]) for own in parts], seed=seed)
    except Inapplicable as refusal:
        return replace(row, refused=str(refusal))
    scores = [score(one, x[own], y[own], space=target.space) for one, own in zip(found, parts, strict=True)]
    psnr = tuple(round(min(value, MOST), 1) for one in scores for value in one.psnr)
    return replace(row, psnr=psnr, labels=round(sum(sum(one.labels or ()) for one in scores)))


def table(rows: list[Row]) -> str:
    """Median and range of the PSNR over images and seeds; refused attacks are left out."""
    lines = ["| victim | recipe | median | lowest | highest | labels right |", "|---|---|---|---|---|---|"]
    before = ""
    for victim, recipe in dict.fromkeys((row.victim, row.recipe) for row in rows if row.psnr):
        same = [row for row in rows if (row.victim, row.recipe) == (victim, recipe)]
        psnr = [value for row in same for value in row.psnr]
        numbers = " | ".join(f"{of(psnr):.1f}" for of in (statistics.median, min, max))
        shown = victim if victim != before else ""
        lines.append(f"| {shown} | {recipe} | {numbers} | {sum(row.labels for row in same)} of {len(psnr)} |")
        before = victim
    return "\n".join(lines)


def read(files: list[Path]) -> list[Row]:
    lines = [line for file in files for line in read_lines(file)]
    return [Row(**line) for line in lines if "recipe" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="1 image, 20 steps")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.show:
        print(table(read(options.show)))
        return
    images, steps = (1, 20) if options.quick else (options.images, options.steps)
    command = f"python -m benchmarks.matching --seed {options.seed} --images {images} --steps {steps}"
    lines: list[dict[str, object]] = [{"command": command, "torch": torch.__version__}]
    rows: list[Row] = []
    for victim in TARGETS:
        for name, recipe in recipes(steps).items():
            rows.append(measured(victim, name, recipe, seed=options.seed, images=images))
            lines.append(asdict(rows[-1]))
            print(json.dumps(lines[-1] | {"attack": ""}), flush=True)
            write_lines(options.out, lines)  # line by line, so that a run that is stopped leaves what it has
    print(table(rows))


if __name__ == "__main__":
    main()
