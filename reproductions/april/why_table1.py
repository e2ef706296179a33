"""What decides the order of Table 1: what is matched and how the label is found, each by itself.

    python -m reproductions.april.why_table1 --data FOLDER

The attacks of Table 1 differ in several things at once. Here all are minimised by Adam with a rate of 0.3 that falls to zero, for the
paper's numbers of steps, from the same starts; only the distance and the label change. DLG is *squared, optimised*, APRIL *squared and
positions, read*, TAG (by AdamW) *squared and absolute, optimised*. On a CPU about 40 minutes; a stopped run resumes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leakgauge.attacks import april, tag
from leakgauge.inversion import L1, L2, Adam, CosineDecay, Decaying, Descent, Joint
from leakgauge.inversion.terms import Term
from reproductions.april import study
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

IMAGES, LR = 4, 0.3
FRAMES = (10, 20, 50, 100, 150, 200, 300, 400, 500, 600, 700, 800, 1000, 1200, 1400)
READ, OPTIMISED = "read", "optimised"
SQUARED, POSITIONS, ABSOLUTE, ALL = (
    "squared",
    "squared and positions",
    "squared and absolute",
    "squared, absolute and positions",
)
CASES = ((SQUARED, OPTIMISED), (SQUARED, READ), (POSITIONS, READ), (ABSOLUTE, OPTIMISED), (ABSOLUTE, READ), (ALL, READ))


def objective(distance: str) -> Term:
    """The distances of DLG, APRIL and TAG as their recipes have them, and the last two together."""
    if distance == ALL:
        return april().objective + 0.1 * L1(weights=Decaying())
    return {SQUARED: L2(), POSITIONS: april().objective, ABSOLUTE: tag().objective}[distance]


def attack(options: Options, results: Rows, images: Images, steps: int) -> None:
    model = study.small_model(images, architecture="B", quick=options.quick, seed=options.seed)
    victim, space = study.victim_of(model, images, options.device), study.space_of(images)
    seen = study.observed(victim, images)
    for distance, labels in CASES:
        name = f"{images.name}, {distance}, {labels}"
        if results.has(data=images.name, distance=distance, labels=labels):
            continue
        ours = april(steps=steps)
        matching = replace(
            ours,
            objective=objective(distance),
            labels=ours.labels if labels == READ else Joint(),
            solver=Descent(Adam(LR), steps, schedule=CosineDecay(), project=False),
            frames=tuple(frame for frame in FRAMES if frame < steps),
        )
        found = matching.many(victim, seen, seed=options.seed)
        results.keep(name, study.shown(found, space))
        results.add(
            name, data=images.name, distance=distance, labels=labels, steps=steps,
            seconds=round(sum(one.seconds for one in found), 1), **study.curves(found, seen, images),
            **study.measured(found, images),
        )  # fmt: skip
    results.keep(f"{images.name}, original", images.x)


def run(options: Options, results: Rows) -> None:
    count = options.count(IMAGES)
    attack(options, results, study.digits(options, count), options.steps(800))
    attack(options, results, study.objects(options, count), options.steps(1500))


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    panels = [
        Panel(
            data, "step", "mean squared error of the image",
            [
                Line(f"{r['distance']}; label {r['labels']}", list(zip(r["frame_steps"], r["frame_mse"], strict=True)))
                for r in rows
                if r["data"] == data
            ],
            log_y=True,
        )
        for data in dict.fromkeys(r["data"] for r in rows)
    ]  # fmt: skip
    svg(out / "why_table1.svg", panels, title="What is matched, and how the label is found")
    if pictures:
        order = sorted(pictures, key=lambda name: (name.split(",")[0], not name.endswith("original")))
        grid(out / "why_table1.png", [(name, pictures[name]) for name in order])


def table(rows: list[Row]) -> str:
    lines = ["| data | matched | label | MSE | median | SSIM | label right |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        middle = sorted(r["each_mse"])[len(r["each_mse"]) // 2]
        errors = f"{r['mse']:.1e} | {middle:.1e} | {r['ssim']:.3f}"
        lines.append(f"| {r['data']} | {r['distance']} | {r['labels']} | {errors} | {r['label_accuracy']:.0%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    study.main(Part("why_table1", run, draw), __doc__)
