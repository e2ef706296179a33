"""Why batches on the CIFAR model are not recovered (Figs. 4, 12–14): APRIL with labels read by one rule and by another.

    python -m reproductions.april.why_batches --data FOLDER

1. ``labels``: how many labels each rule reads rightly, in batches of 4 to 24, and how much an untrained model favours some classes. The
   rule of Yin et al. that the paper uses asks for features that are not negative and for labels that differ; the head of this model
   reads tokens of either sign, and ten classes cannot give 24 different labels. The paper's batches are of ImageNet images.
2. ``attack``: the first batches of ``batches.py`` by themselves, with those chances subtracted from the counts that the public model
   gives to images of noise; larger ones with three times the steps, 16 and 24 on a GPU only.

A stopped run resumes, and one on a GPU adds to one on a CPU. About half an hour on one core.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from leakgauge.channels import Gradient
from leakgauge.core import Victim, share
from leakgauge.errors import Inapplicable
from leakgauge.inversion import BiasCounts, ExpectedCounts, MinimumEntry
from leakgauge.inversion.labels import LabelRule
from reproductions.april import study
from reproductions.april.batches import BY_BIAS, RULE, SET_UP, labels_read
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.gates import squared_length
from reproductions.common.runner import Part, Pictures, Row, Rows

RULES: dict[str, LabelRule] = {BY_BIAS: BiasCounts(strict=False), RULE: ExpectedCounts(), "Yin et al.": MinimumEntry()}
SIZES = (4, 8, 16, 24)
BATCHES = 20
ATTACKED = ((4, 1500), (8, 4500))
ON_A_GPU = ((16, 4500), (24, 4500))
"""Size of a batch and steps."""


def read(rule: LabelRule, victim: Victim, images: Images) -> float | None:
    """Share of the labels that the rule reads rightly; None where it refuses."""
    x = victim.space.encode(images.x).to(victim.device)
    seen = share(victim, Gradient(), x, images.y.to(victim.device))
    try:
        found = rule(victim, seen, rng=torch.Generator().manual_seed(0))
    except Inapplicable:
        return None
    return labels_read(found, images.y)


def part(images: Images, start: int, count: int) -> Images:
    return Images(images.name, images.x[start : start + count], images.y[start : start + count])


def labels(options: Options, results: Rows, size: int) -> None:
    images = study.objects(options, size * options.count(BATCHES))
    victim = study.victim_of(
        study.small_model(images, architecture="B", quick=options.quick, seed=options.seed), images, options.device
    )
    with torch.no_grad():
        chances = victim(victim.space.encode(images.x[:100]).to(victim.device)).softmax(1).mean(0)
    for name, rule in RULES.items():
        if results.has(part="labels", batch=size, rule=name):
            continue
        found = [read(rule, victim, part(images, i, size)) for i in range(0, len(images.x) - size + 1, size)]
        right = [value for value in found if value is not None]
        results.add(
            f"labels, batch of {size}, {name}",
            part="labels",
            batch=size,
            rule=name,
            data=images.name,
            batches=len(found),
            refused=found.count(None),
            labels_read=study.mean(right) if right else None,
            all_right=right.count(1.0),
            favoured=float(chances.max()),
        )


def attack(options: Options, results: Rows, size: int, steps: int) -> None:
    images = study.objects(options, size)
    model = study.small_model(images, architecture="B", quick=options.quick, seed=options.seed)
    victim, space = study.victim_of(model, images, options.device), study.space_of(images)
    (seen,) = study.observed(victim, images, batch=size)
    matching = replace(study.matching_attack("april", steps=options.steps(steps)), labels=ExpectedCounts())
    found = matching(victim, seen, seed=options.seed)
    square = squared_length(seen.signal)
    results.keep(f"{size} original", images.x)
    results.keep(f"{size}, found", study.in_order(space.decode(found.x.cpu()), images.x))
    results.drop(part="attack", batch=size)
    results.add(
        f"attack, batch of {size}",
        part="attack",
        batch=size,
        data=images.name,
        steps=options.steps(steps),
        seconds=round(found.seconds, 1),
        loss=found.loss / square,
        labels_read=labels_read(found.y, images.y),
        **study.measured([found], images),
    )


def run(options: Options, results: Rows) -> None:
    for size in SIZES[:1] if options.quick else SIZES:
        labels(options, results, size)
    cases = ((2, 1500),) if options.quick else ATTACKED + (ON_A_GPU if options.device.type == "cuda" else ())
    for size, steps in cases:
        if results.has(part="attack", batch=size, steps=options.steps(steps)):
            continue
        if options.allows(SET_UP):
            attack(options, results, size, steps)
        else:
            results.wait(f"batch of {size}")


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    own = [r for r in rows if r["part"] == "labels" and r["labels_read"] is not None]
    panel = Panel(
        "Labels of CIFAR-10 batches, untrained model", "images in the batch", "labels read rightly",
        [Line(n, [(r["batch"], r["labels_read"]) for r in own if r["rule"] == n]) for n in dict.fromkeys(r["rule"] for r in own)],
        bounds=(0, 1), ticks=sorted({r["batch"] for r in own}),
    )  # fmt: skip
    svg(out / "why_batches.svg", [panel], title="Labels read from gradients of batches")
    if pictures:
        grid(out / "why_batches.png", list(pictures.items()))


def table(rows: list[Row]) -> str:
    lines = [
        "| batch | rule | labels read rightly | batches read wholly | refused | mean chance of the favoured class |",
        "|---|---|---|---|---|---|",
    ]
    for r in (r for r in rows if r["part"] == "labels"):
        right = "–" if r["labels_read"] is None else f"{r['labels_read']:.0%}"
        lines.append(
            f"| {r['batch']} | {r['rule']} | {right} | {r['all_right']} of {r['batches']} | {r['refused']} | {r['favoured']:.2f} |"
        )
    lines += ["", "| batch | labels read rightly | steps | loss / ‖g*‖² | MSE | SSIM |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r['batch']} | {r['labels_read']:.0%} | {r['steps']} | {r['loss']:.1e} | {r['mse']:.4f} | {r['ssim']:.3f} |"
        for r in rows
        if r["part"] == "attack"
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    study.main(Part("why_batches", run, draw), __doc__)
