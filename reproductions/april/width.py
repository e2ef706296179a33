"""Fig. 5: does a narrower model hide the image from the closed form, and what does the narrowness cost in accuracy?

    python reproductions/april/width.py --data FOLDER

1. ViT-Base of architecture A with widths 768 to 96 on photographs, as in the figure.
2. A CIFAR-10 model (patch 4, depth 4) of widths 384 to 24: the closed form beside the accuracy that the same widths reach.

A run that was stopped goes on where it was: rows that are in ``width.jsonl`` are not measured again.
"""

from __future__ import annotations

from pathlib import Path

import study
from drawing import Line, Panel, grid, svg
from study import Images, Options, Pictures, Results, Row
from training import accuracies

from leakgauge.attacks import april_closed_form

WIDTHS = (768, 384, 192, 96)
CIFAR_WIDTHS = (384, 192, 96, 48, 24)
SEEDS = 3


def leak(options: Options, results: Results, images: Images, widths: tuple[int, ...], *, base: bool) -> None:
    """The closed form at each width, on models that differ in nothing else."""
    name = "ViT-Base" if base else "CIFAR model"
    widths = tuple(width for width in widths if not results.has(part="leak", model=name, width=width))
    for width in widths:
        make = study.base_model if base else study.small_model
        patch = {} if base else {"patch": 7 if images.shape[1] == 28 else 4}
        model = make(images, architecture="A", quick=options.quick, seed=options.seed, width=width, **patch)
        victim = study.victim_of(model, images, options.device)
        space = study.space_of(images)
        found = [april_closed_form()(victim, seen) for seen in study.observed(victim, images)]
        results.add(
            part="leak",
            model=name,
            data=images.name,
            width=width,
            tokens=model.pos_embed.shape[1] - 1,
            patch_values=model.patch_embed.proj.weight[0].numel(),
            predicted=found[0].notes[0].split("predicted: ")[1],
            **study.measured(found, images, space),
        )
        if base:
            results.keep(f"width {width}", study.shown(found, space))
    if base and widths:
        results.keep("original", images.x)


def accuracy(options: Options, results: Results, widths: tuple[int, ...]) -> None:
    """Training on CIFAR-10 at each width, for both architectures, three initial weights each."""
    count = 200 if options.quick else 50_000
    train = study.objects(options, count, train=True)
    test = study.objects(options, 200 if options.quick else 10_000)
    epochs = 1 if options.quick else 8
    seeds = range(1 if options.quick else SEEDS)
    for architecture in ("B", "A"):
        for width in widths:
            if results.has(part="accuracy", architecture=architecture, width=width):
                continue
            models = [
                study.small_model(
                    train,
                    architecture=architecture,
                    quick=options.quick,
                    width=width,
                    patch=8 if options.quick else 4,
                    seed=options.seed + s,
                )
                for s in seeds
            ]
            found = accuracies(
                models,
                (train.x, train.y),
                (test.x, test.y),
                frozen=[()] * len(models),
                epochs=epochs,
                device=options.device,
            )
            results.add(
                part="accuracy",
                data=train.name,
                trained_on=len(train.x),
                epochs=epochs,
                architecture=architecture,
                width=width,
                accuracy=study.mean(found),
                each=study.rounded(found),
            )


def run(options: Options, results: Results) -> None:
    leak(options, results, study.large(options, options.count(8)), WIDTHS[1:] if options.quick else WIDTHS, base=True)
    widths = (48, 24) if options.quick else CIFAR_WIDTHS
    leak(options, results, study.objects(options, options.count(50)), widths, base=False)
    accuracy(options, results, widths)


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    leaks = {
        name: [(r["width"], r["ssim"]) for r in rows if r["part"] == "leak" and r["model"] == name]
        for name in ("ViT-Base", "CIFAR model")
    }
    trained = {
        name: [(r["width"], r["accuracy"]) for r in rows if r["part"] == "accuracy" and r["architecture"] == name]
        for name in "AB"
    }
    widths = sorted({w for w, _ in leaks["CIFAR model"]})
    panels = [
        Panel(
            "ViT-Base, 196 patches of 768 values", "width", "SSIM of the closed form",
            [Line("closed form", leaks["ViT-Base"])], log_x=True, bounds=(0, 1), ticks=sorted(w for w, _ in leaks["ViT-Base"]),
        ),
        Panel(
            "CIFAR model, 64 patches of 48 values", "width", "SSIM, or accuracy on CIFAR-10",
            [
                Line("closed form", leaks["CIFAR model"]),
                Line("accuracy, architecture A", trained["A"], dashed=True),
                Line("accuracy, architecture B", trained["B"], dashed=True),
            ],
            log_x=True, bounds=(0, 1), ticks=widths,
        ),
    ]  # fmt: skip
    svg(
        out / "width.svg",
        panels,
        title="What the closed form recovers at each width, and the accuracy that width costs",
    )
    if "original" in pictures:
        names = sorted(set(pictures) - {"original"}, key=lambda name: -int(name.split()[1]))
        grid(out / "width.png", [(name, pictures[name]) for name in ("original", *names)])


def table(rows: list[Row]) -> str:
    lines = ["| model | width | SSIM of the closed form | predicted before solving |", "|---|---|---|---|"]
    lines += [
        f"| {r['model']} | {r['width']} | {r['ssim']:.3f} | {r['predicted']} |" for r in rows if r["part"] == "leak"
    ]
    lines += ["", study.trained(rows)]
    lines += ["", "| width | accuracy, architecture B | accuracy, architecture A |", "|---|---|---|"]
    found = {(r["architecture"], r["width"]): r["accuracy"] for r in rows if r["part"] == "accuracy"}
    for width in sorted({w for _, w in found}, reverse=True):
        cells = [f"{found[a, width]:.1%}" if (a, width) in found else "not yet" for a in "BA"]
        lines.append(f"| {width} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    study.main("width", run, draw, __doc__, goes_on=True)
