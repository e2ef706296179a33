"""Figs. 4, 12, 13 and 14: APRIL on batches of 4 to 24 images.

    python -m reproductions.april.batches --data FOLDER [--within SECONDS]

The paper's CIFAR-10 model with batches of 4, 8, 16 and 24 (two batches each), and ViT-Base with 4 photographs and with 24 pictures cut from
them, with the paper's steps. Labels repeat, and the rule the paper borrows from Yin et al. needs distinct ones; they are counted from the
bias gradient, less the chances that the public model gives to noise (``ExpectedCounts``). Rows of an earlier run counted them without
(``BiasCounts``), which reads many wrongly: see ``why_batches.py``. A stopped run resumes with the missing cases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.engine import TF32, Exact, Fused, Precision
from leakgauge.inversion import ExpectedCounts
from leakgauge.measures.reidentification import rank
from reproductions.april import study
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.gates import squared_length
from reproductions.common.runner import Part, Pictures, Row, Rows

SIZES = (4, 8, 16, 24)
BY_BIAS, RULE = "counts from the bias", "less the chances on noise"
"""How labels were read: before, and now."""
SET_UP = 20.0
"""Seconds that must be left for a case to begin."""


@dataclass(frozen=True)
class Case:
    """Batches of ``size`` images against one model."""

    model: str
    size: int
    images: Images
    make: study.Make
    steps: int
    precision: Precision

    @property
    def key(self) -> Row:
        return {"model": self.model, "batch": self.size, "rule": RULE}

    def __str__(self) -> str:
        return f"{self.model}, batch of {self.size}"


def pictures_of(photographs: Images) -> Images:
    """Each photograph, its upper left and its lower right two thirds: three times as many pictures, classes all different."""
    side = photographs.shape[1]
    part = 2 * side // 3
    cuts = [photographs.x[:, :, :part, :part], photographs.x[:, :, -part:, -part:]]
    enlarged = [F.interpolate(cut, size=(side, side), mode="bilinear", align_corners=False) for cut in cuts]
    x = torch.stack([photographs.x, *enlarged], 1).flatten(0, 1)
    return Images(f"{photographs.name} and cuts of them", x, 37 * torch.arange(len(x)) % 1000)


def cases(options: Options) -> list[Case]:
    """The CIFAR model, then ViT-Base, whose largest batch takes longest."""
    steps, photographs = options.steps(1500), study.large(options, 8)
    small = [
        Case("CIFAR model", size, study.objects(options, 2 * size), study.small_model, steps, Exact())
        for size in ((2, 3) if options.quick else SIZES)
    ]
    shown = [photographs.first(2)] if options.quick else [photographs.first(4), pictures_of(photographs)]
    large = [Case("ViT-Base", len(own.x), own, study.base_model, options.steps(5000), Fused(TF32())) for own in shown]
    return small + large


def labels_read(found: Tensor | None, true: Tensor) -> float:
    """Share of the labels that were read, in any order: what two bags of labels have in common."""
    if found is None:
        return 0.0
    counts = [torch.bincount(labels.cpu(), minlength=1000) for labels in (found, true)]
    return int(torch.minimum(*counts).sum()) / len(true)


def attack(options: Options, results: Rows, case: Case) -> None:
    images, size = case.images, case.size
    model = case.make(images, architecture="B", quick=options.quick, seed=options.seed)
    victim, space = study.victim_of(model, images, options.device), study.space_of(images)
    april = replace(study.matching_attack("april", steps=case.steps, precision=case.precision), labels=ExpectedCounts())
    began, seen = time.perf_counter(), study.observed(victim, images, batch=size)
    found = april.many(victim, seen, seed=options.seed)
    squares = [squared_length(one.signal) for one in seen]
    own = [images.y[i * size : (i + 1) * size] for i in range(len(seen))]
    shown = {"original": images.x[:size], "found": study.in_order(space.decode(found[0].x.cpu()), images.x[:size])}
    for what, pictures in shown.items():
        results.keep(f"{case.model} {size} {what}", pictures)
    results.drop(**case.key)
    results.add(
        f"{case.model}, batch of {size}, {case.steps} steps, {RULE}",
        **case.key,
        data=images.name,
        batches=len(seen),
        steps=case.steps,
        of_steps=case.steps,
        seconds=round(time.perf_counter() - began, 1),
        loss=study.mean([one.loss for one in found]),
        relative_loss=study.mean([one.loss / square for one, square in zip(found, squares, strict=True)]),
        labels_read=study.mean([labels_read(one.y, true) for one, true in zip(found, own, strict=True)]),
        **study.measured(found, images),
        **ranks_of(results.pictures, case.model, size),
    )


def ranks_of(pictures: Pictures, model: str, size: int) -> Row:
    """Where each picture's own image ranks among those of the (first) batch by likeness to it, and the same for pictures of noise.

    Noise is the control, since pictures are paired with the images they are most like.
    """
    found, originals = (
        torch.from_numpy(pictures[f"{model} {size} {what}"]).float() / 255 for what in ("found", "original")
    )
    noise = torch.rand(originals.shape, generator=torch.Generator().manual_seed(0))
    return {
        name: rank(study.in_order(guesses, originals), originals, originals).tolist()
        for name, guesses in (("each_rank", found), ("noise_rank", noise))
    }


def run(options: Options, results: Rows) -> None:
    for number, case in enumerate(cases(options)):
        drawn = f"{case.model} {case.size} found" in results.pictures
        if drawn and results.has(**case.key, steps=case.steps):
            continue
        if options.allows(SET_UP) and number < (options.first or math.inf):
            attack(options, results, case)
        else:
            results.wait(f"{case}")


def newest(rows: Sequence[Row]) -> list[Row]:
    """Of each model and size the row with the labels read as they are now, where there is one."""
    found = {(row["model"], row["batch"]): row for row in sorted(rows, key=lambda row: row["rule"] == RULE)}
    return list(found.values())


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    own = [r for r in rows if r["model"] == "CIFAR model"]
    lines = {rule: [r for r in own if r["rule"] == rule] for rule in dict.fromkeys(r["rule"] for r in own)}
    panels = [
        Panel(
            "CIFAR model, APRIL", "images in the batch", words,
            [Line(f"labels: {rule}", [(r["batch"], r[what]) for r in of]) for rule, of in lines.items()],
            ticks=sorted({r["batch"] for r in own}), bounds=(0, 1),
        )
        for what, words in (("ssim", "SSIM, mean over the images"), ("labels_read", "labels read rightly"))
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
    lines = [
        "| model | batch | labels | steps | paper | MSE | SSIM | at 56×56 | most like their own image | noise | labels read rightly |",
        "|---|" + "---|" * 10,
    ]
    for r in rows:
        more = f" of {r['of_steps']}" if r["steps"] < r.get("of_steps", 0) else ""
        lines.append(
            f"| {r['model']} | {r['batch']} | {r['rule']} | {r['steps']}{more} | recognisable | {r['mse']:.4f} | {r['ssim']:.3f} "
            f"| {from_afar(r)} | {first(r, 'each_rank')} | {first(r, 'noise_rank')} | {r['labels_read']:.0%} |"
        )
    missing = [f"{r['model']} {r['batch']}" for r in newest(rows) if r["rule"] != RULE]
    return "\n".join(
        [*lines, "", f"Not measured yet with labels {RULE}: {', '.join(missing)}." if missing else ""]
    ).rstrip()


def from_afar(row: Row) -> str:
    """SSIM of large images averaged down."""
    return f"{study.mean(row['each_ssim_reduced']):.2f}" if row.get("each_ssim_reduced") else "–"


def first(row: Row, ranks: str) -> str:
    return f"{row[ranks].count(1)} of {len(row[ranks])}" if ranks in row else "–"


if __name__ == "__main__":
    study.main(Part("batches", run, draw), __doc__)
