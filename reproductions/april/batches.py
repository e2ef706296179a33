"""Figs. 4, 12, 13 and 14: APRIL on batches of 4 to 24 images.

    python reproductions/april/batches.py --data FOLDER

The paper's CIFAR-10 model with batches of 4, 8, 16 and 24 (two batches each), and ViT-Base with 4 photographs and with 24 pictures cut from
them. Labels are counted from the bias gradient (they repeat; the rule the paper borrows from Yin et al. needs distinct ones).
"""

from __future__ import annotations

from pathlib import Path

import study
import torch
import torch.nn.functional as F
from drawing import Line, Panel, grid, svg
from study import Images, Options, Pictures, Results, Row
from torch import Tensor

from leakgauge.engine import TF32
from leakgauge.inversion import Matching

SIZES = (4, 8, 16, 24)
FRAMES = (50, 100, 200, 400, 800)


def pictures_of(photographs: Images) -> Images:
    """Each photograph, its upper left and its lower right two thirds: three times as many pictures, classes all different."""
    side = photographs.shape[1]
    part = 2 * side // 3
    cuts = [photographs.x[:, :, :part, :part], photographs.x[:, :, -part:, -part:]]
    enlarged = [F.interpolate(cut, size=(side, side), mode="bilinear", align_corners=False) for cut in cuts]
    x = torch.stack([photographs.x, *enlarged], 1).flatten(0, 1)
    return Images(f"{photographs.name} and cuts of them", x, 37 * torch.arange(len(x)) % 1000)


def labels_read(found: Tensor | None, true: Tensor) -> float:
    """Share of the labels that were read, in any order: what two bags of labels have in common."""
    if found is None:
        return 0.0
    counts = [torch.bincount(labels.cpu(), minlength=1000) for labels in (found, true)]
    return int(torch.minimum(*counts).sum()) / len(true)


def batch(
    options: Options, results: Results, images: Images, model: str, size: int, make: study.Make, matching: Matching
) -> None:
    victim = study.victim_of(
        make(images, architecture="B", quick=options.quick, seed=options.seed), images, options.device
    )
    space = study.space_of(images)
    seen = study.observed(victim, images, batch=size)
    found = matching.many(victim, seen, seed=options.seed)
    results.add(
        model=model,
        data=images.name,
        batch=size,
        batches=len(seen),
        steps=matching.solver.steps,
        seconds=round(found[0].seconds * len(found), 1),
        loss=study.mean([one.loss for one in found]),
        labels_read=study.mean(
            [labels_read(one.y, images.y[i * size : (i + 1) * size]) for i, one in enumerate(found)]
        ),
        **study.measured(found, images, space),
    )
    first = found[0]
    results.keep(f"{model} {size} original", images.x[:size])
    results.keep(f"{model} {size} found", study.in_order(space.decode(first.x.cpu()), images.x[:size]))


def run(options: Options, results: Results) -> None:
    for size in (2, 3) if options.quick else SIZES:
        images = study.objects(options, 2 * size)
        matching = study.matching_attack("april", steps=options.steps(1500), frames=FRAMES)
        batch(options, results, images, "CIFAR model", size, study.small_model, matching)
    if options.quick:
        return
    photographs = study.large(options, 8)
    for images, size, steps in ((photographs.first(4), 4, 600), (pictures_of(photographs), 24, 200)):
        matching = study.matching_attack("april", steps=steps, precision=TF32())
        batch(options, results, images, "ViT-Base", size, study.base_model, matching)


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    own = [r for r in rows if r["model"] == "CIFAR model"]
    panels = [
        Panel(
            "CIFAR model, APRIL", "images in the batch", what.upper() if what != "labels_read" else "labels read rightly",
            [Line("mean over the images", [(r["batch"], r[what]) for r in own])], ticks=[r["batch"] for r in own],
            bounds=None if what == "mse" else (0, 1),
        )
        for what in ("ssim", "labels_read")
    ]  # fmt: skip
    svg(out / "batches.svg", panels, title="APRIL on batches")
    for model in ("CIFAR model", "ViT-Base"):
        shown = []
        for size in sorted({int(n.split()[-2]) for n in pictures if n.startswith(model)}):
            for what in ("original", "found"):
                images = pictures[f"{model} {size} {what}"]
                shown += [
                    (f"{size}, {what}" if start == 0 else "", images[start : start + 12])
                    for start in range(0, len(images), 12)
                ]
        if shown:
            grid(out / f"batches_{model.split()[0].split('-')[0].lower()}.png", shown, side=64)


def table(rows: list[Row]) -> str:
    lines = ["| model | batch | steps | paper | MSE | SSIM | labels read rightly |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {r['model']} | {r['batch']} | {r['steps']} | recognisable | {r['mse']:.4f} | {r['ssim']:.3f} | {r['labels_read']:.0%} |"
        for r in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    study.main("batches", run, draw, __doc__)
