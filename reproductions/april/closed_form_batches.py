"""Fig. 10: the closed form on the gradient of a batch gives one image; is it a mixture that shows anything?

    python -m reproductions.april.closed_form_batches

The one image is compared with every image of its batch and with their mean; the best of those similarities is what an adversary
could hope for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from leakgauge.attacks import april_closed_form
from leakgauge.measures.image import mse, ssim
from reproductions.april import study
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

SIZES = (1, 2, 3, 4, 8, 24)


def run(options: Options, results: Rows) -> None:
    sizes = (1, 2) if options.quick else SIZES
    photographs = study.large(options, 2 if options.quick else 8)
    study_of(options, results, photographs, study.base_model, "ViT-Base", tuple(s for s in sizes if s <= 8))
    small = study.objects(options, 4 if options.quick else 48)
    study_of(options, results, small, study.small_model, "CIFAR model", sizes)


def study_of(
    options: Options, results: Rows, images: Images, make: study.Make, model: str, sizes: tuple[int, ...]
) -> None:
    victim = study.victim_of(
        make(images, architecture="A", quick=options.quick, seed=options.seed), images, options.device
    )
    space = study.space_of(images)
    for size in sizes:
        unit = f"{model}, batch of {size}"
        if results.has(unit):
            continue
        seen = study.observed(victim, images, batch=size)
        proxies = torch.cat([space.decode(april_closed_form()(victim, one).x[:1].cpu()) for one in seen])
        truths = images.x[: len(seen) * size].unflatten(0, (len(seen), size))
        flat = proxies.repeat_interleave(size, 0)
        each = ssim(flat, truths.flatten(0, 1)).view(len(seen), size)
        if model == "ViT-Base":
            results.keep(f"batch {size}", proxies)
        results.add(
            unit,
            model=model,
            data=images.name,
            batch=size,
            batches=len(seen),
            best_ssim=float(each.max(1).values.mean()),
            mean_ssim=float(each.mean()),
            ssim_of_mean=float(ssim(proxies, truths.mean(1)).mean()),
            mse=float(mse(flat, truths.flatten(0, 1)).mean()),
        )
    if model == "ViT-Base":
        results.keep("original", images.x)


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    panels = [
        Panel(
            model, "images in the batch", "SSIM",
            [
                Line("with the most similar image", [(r["batch"], r["best_ssim"]) for r in rows if r["model"] == model]),
                Line("with an image of the batch, mean", [(r["batch"], r["mean_ssim"]) for r in rows if r["model"] == model]),
                Line("with the batch's mean", [(r["batch"], r["ssim_of_mean"]) for r in rows if r["model"] == model]),
            ],
            log_x=True, bounds=(0, 1), ticks=[r["batch"] for r in rows if r["model"] == model],
        )
        for model in ("ViT-Base", "CIFAR model")
    ]  # fmt: skip
    svg(out / "closed_form_batches.svg", panels, title="What the closed form makes of a batch")
    if pictures:
        sizes = sorted((name for name in pictures if name.startswith("batch")), key=lambda n: int(n.split()[1]))
        originals = pictures["original"]
        shown = [(name, spread(pictures[name], len(originals))) for name in sizes]
        grid(out / "closed_form_batches.png", [("original", originals), *shown])


def spread(proxies: np.ndarray, columns: int) -> np.ndarray:
    """Each proxy under the first image of its batch, white elsewhere."""
    page = np.full((columns, *proxies.shape[1:]), 255, np.uint8)
    page[:: columns // len(proxies)][: len(proxies)] = proxies
    return page


def table(rows: list[Row]) -> str:
    lines = [
        "| model | batch | batches | SSIM with the most similar image | with the batch's mean |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['model']} | {r['batch']} | {r['batches']} | {r['best_ssim']:.3f} | {r['ssim_of_mean']:.3f} |"
        for r in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    study.main(Part("closed_form_batches", run, draw), __doc__)
