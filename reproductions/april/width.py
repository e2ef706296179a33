"""Fig. 5: does a narrower model hide the image from the closed form, and what does the narrowness cost in accuracy?

    python -m reproductions.april.width --data FOLDER

1. ViT-Base of architecture A with widths 768 to 96 on photographs, as in the figure.
2. A CIFAR-10 model (patch 4, depth 4) of widths 384 to 24: the closed form beside the accuracy that the same widths reach.

A stopped run resumes: rows that are in ``width.jsonl`` are not measured again.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.attacks import april_closed_form
from leakgauge.measures.reidentification import normalised_correlation, rank
from reproductions.april import study
from reproductions.april.study import Images, Options
from reproductions.april.training import accuracies
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

WIDTHS = (768, 384, 192, 96)
TRAINING = 40.0
"""Seconds that must be left for a training to begin."""
CIFAR_WIDTHS = (384, 192, 96, 48, 24)
SEEDS = 3
RATES = {"B": (1e-3,), "A": (1e-3, 3e-4)}
"""Learning rates of the trainings. Without residual connections (A) the widest model does not train at the first from every start."""


def leak(options: Options, results: Rows, images: Images, widths: tuple[int, ...], *, base: bool) -> None:
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
        if base:
            results.keep(f"width {width}", study.shown(found, space))
        results.add(
            f"leak, {name}, width {width}",
            part="leak",
            model=name,
            data=images.name,
            width=width,
            tokens=model.pos_embed.shape[1] - 1,
            patch_values=model.patch_embed.proj.weight[0].numel(),
            predicted=found[0].notes[0].split("predicted: ")[1],
            **study.measured(found, images),
        )
    if base and widths:
        results.keep("original", images.x)


def told_apart(options: Options, results: Rows, images: Images, widths: tuple[int, ...]) -> None:
    """Does a picture of the closed form show its own image? Likeness to it, and its rank among all images and their mirror images.

    SSIM is near zero for any grainy picture, also one in which the image is plain to see.
    """
    pool = torch.cat([images.x, images.x.flip(-1), images.x.flip(-2), images.x.flip((-1, -2))])
    for width in widths:
        unit = f"told apart, width {width}"
        if results.has(unit):
            continue
        model = study.base_model(images, architecture="A", quick=options.quick, seed=options.seed, width=width)
        victim, space = study.victim_of(model, images, options.device), study.space_of(images)
        pictures = study.shown([april_closed_form()(victim, seen) for seen in study.observed(victim, images)], space)
        small, truth, others = (averaged(x) for x in (pictures, images.x, pool))
        results.add(
            unit,
            part="told apart",
            width=width,
            images=len(images.x),
            candidates=len(pool),
            each_likeness=study.rounded(normalised_correlation(small, truth).diagonal().tolist()),
            each_rank=rank(small, truth, others).tolist(),
        )


def averaged(images: Tensor) -> Tensor:
    """Blocks of 4 × 4 pixels, as an eye does from a distance."""
    return F.avg_pool2d(images, 4)


def accuracy(options: Options, results: Rows, widths: tuple[int, ...]) -> None:
    """Training on CIFAR-10 at each width, for both architectures, three initial weights each."""
    count = 200 if options.quick else 50_000
    train = study.objects(options, count, train=True)
    test = study.objects(options, 200 if options.quick else 10_000)
    epochs = 1 if options.quick else 8
    seeds = range(1 if options.quick else SEEDS)
    for architecture, lr in ((architecture, lr) for architecture, rates in RATES.items() for lr in rates):
        for width in widths:
            if results.has(part="accuracy", architecture=architecture, width=width, lr=lr):
                continue
            if not options.allows(TRAINING):
                results.wait(f"architecture {architecture}, width {width}, rate {lr:g}")
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
                lr=lr,
            )
            results.add(
                f"accuracy, {architecture}, width {width}, rate {lr:g}",
                part="accuracy",
                data=train.name,
                trained_on=len(train.x),
                epochs=epochs,
                architecture=architecture,
                width=width,
                lr=lr,
                accuracy=study.mean(found),
                each=study.rounded(found),
            )


def run(options: Options, results: Rows) -> None:
    leak(options, results, study.large(options, options.count(8)), WIDTHS[1:] if options.quick else WIDTHS, base=True)
    told_apart(options, results, study.large(options, options.count(8)), WIDTHS[1:] if options.quick else WIDTHS)
    widths = (48, 24) if options.quick else CIFAR_WIDTHS
    leak(options, results, study.objects(options, options.count(50)), widths, base=False)
    accuracy(options, results, widths)


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    leaks = {
        name: [(r["width"], r["ssim"]) for r in rows if r["part"] == "leak" and r["model"] == name]
        for name in ("ViT-Base", "CIFAR model")
    }
    trained = {
        case: [(w, r["accuracy"]) for (*of, w), r in accuracies_of(rows).items() if tuple(of) == case]
        for case in ((architecture, lr) for architecture, rates in RATES.items() for lr in rates)
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
                *(Line(f"accuracy, architecture {a}, rate {lr:g}", points, dashed=True) for (a, lr), points in trained.items()),
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
    seen = {r["width"]: r for r in rows if r["part"] == "told apart"}
    lines = [
        "| model | width | SSIM of the closed form | likeness from afar | most like its own image | predicted before solving |",
        "|---|---|---|---|---|---|",
    ]
    for r in (r for r in rows if r["part"] == "leak"):
        far = seen.get(r["width"]) if r["model"] == "ViT-Base" else None
        words = ["–", "–"] if far is None else [f"{study.mean(far['each_likeness']):.2f}", first(far)]
        lines.append(f"| {r['model']} | {r['width']} | {r['ssim']:.3f} | {' | '.join(words)} | {r['predicted']} |")
    found, cases = accuracies_of(rows), [(architecture, lr) for architecture in RATES for lr in RATES[architecture]]
    heads = [f"architecture {architecture}, rate {lr:g}" for architecture, lr in cases]
    lines += ["", f"{study.trained(rows)} Accuracy, mean and lowest to highest of {SEEDS} starts:"]
    lines += ["", f"| width | {' | '.join(heads)} |", "|---|" + "---|" * len(heads)]
    for width in sorted({w for *_, w in found}, reverse=True):
        cells = [spread(found[*case, width]["each"]) if (*case, width) in found else "not yet" for case in cases]
        lines.append(f"| {width} | {' | '.join(cells)} |")
    return "\n".join(lines)


def first(row: Row) -> str:
    """How many pictures are more like their own image than like any other."""
    return f"{row['each_rank'].count(1)} of {row['images']}"


def accuracies_of(rows: list[Row]) -> dict[tuple[str, float, int], Row]:
    """The rows of trainings by architecture, learning rate and width."""
    return {(r["architecture"], r["lr"], r["width"]): r for r in rows if r["part"] == "accuracy"}


def spread(values: list[float]) -> str:
    return f"{study.mean(values):.1%} ({min(values):.1%}–{max(values):.1%})"


if __name__ == "__main__":
    study.main(Part("width", run, draw), __doc__)
