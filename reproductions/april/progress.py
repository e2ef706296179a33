"""Figs. 3 and 11: how the image emerges, for APRIL, DLG and TAG.

    python -m reproductions.april.progress --data FOLDER

Architecture B; frames at the paper's iterations. On photographs with ViT-Base 600 iterations instead of 5000, with products
rounded to TF32.
"""

from __future__ import annotations

from pathlib import Path

import torch

from leakgauge.engine import TF32, Precision
from reproductions.april import study
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

NAMES = {"april": "APRIL", "dlg": "DLG", "tag": "TAG"}
FRAMES = (10, 50, 100, 200, 500)
LARGE_FRAMES = (50, 100, 200, 500)


def follow(
    options: Options,
    results: Rows,
    images: Images,
    make: study.Make,
    attack: str,
    steps: int,
    frames: tuple[int, ...],
    precision: Precision | None = None,
) -> None:
    unit = f"{images.name}, {NAMES[attack]}"
    if results.has(unit):
        return
    model = make(images, architecture="B", quick=options.quick, seed=options.seed)
    victim, space = study.victim_of(model, images, options.device), study.space_of(images)
    seen = study.observed(victim, images)
    matching = study.matching_attack(attack, steps=steps, frames=frames, precision=precision)
    found = matching.many(victim, seen, seed=options.seed)
    for number, one in enumerate(found[:4]):
        frames_of_it = torch.cat([space.decode(x) for x in one.trace.snapshots])
        results.keep(
            f"{images.name}/{number}/{NAMES[attack]}", torch.cat([images.x[number : number + 1], frames_of_it])
        )
    results.add(
        unit,
        attack=NAMES[attack],
        data=images.name,
        steps=steps,
        seconds=round(found[0].seconds * len(found), 1),
        **study.measured(found, images),
        **study.curves(found, seen, images),
    )


def run(options: Options, results: Rows) -> None:
    mnist, cifar = study.digits(options, options.count(10)), study.objects(options, options.count(10))
    for attack in NAMES:
        follow(options, results, mnist, study.small_model, attack, options.steps(800), FRAMES)
    if options.quick:
        return
    for attack in NAMES:
        follow(options, results, cifar, study.small_model, attack, 1500, FRAMES)
    photographs = study.large(options, 4)
    follow(options, results, photographs, study.base_model, "april", 600, LARGE_FRAMES, TF32())
    for attack in ("dlg", "tag"):
        follow(options, results, photographs.first(2), study.base_model, attack, 600, LARGE_FRAMES, TF32())


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    panels = [
        Panel(
            f"{data}, architecture B", "iteration", "mean squared error of the image",
            [
                Line(r["attack"], list(zip(r["frame_steps"], r["frame_mse"], strict=True)))
                for r in rows if r["data"] == data
            ],
            log_x=True, log_y=True,
        )
        for data in dict.fromkeys(r["data"] for r in rows)
    ]  # fmt: skip
    svg(out / "progress.svg", panels, columns=3, title="Image error over the iterations")
    for data in dict.fromkeys(name.split("/")[0] for name in pictures):
        own = sorted((n.split("/")[1:], x) for n, x in pictures.items() if n.startswith(f"{data}/"))
        steps = next(r["frame_steps"] for r in rows if r["data"] == data)
        shown = [(name, x) for (_, name), x in own]
        side = 64 if shown[0][1].shape[2] <= 64 else 112
        grid(out / f"progress_{data.split()[0].lower()}.png", shown, side=side, heads=["original", *map(str, steps)])


def table(rows: list[Row]) -> str:
    lines = [
        "| data | attack | images | MSE after 100 | after 500 | at the end | SSIM at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        at = dict(zip(r["frame_steps"], r["frame_mse"], strict=True))
        cells = [f"{at[s]:.2g}" if s in at else "–" for s in (100, 500)]
        lines.append(
            f"| {r['data']} | {r['attack']} | {r['images']} | {cells[0]} | {cells[1]} | {r['mse']:.2g} ({r['steps']}) | {r['ssim']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    study.main(Part("progress", run, draw), __doc__)
