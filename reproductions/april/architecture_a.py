"""Fig. 2: all attacks on architecture A, by optimisation and in closed form.

    python -m reproductions.april.architecture_a --data FOLDER

As in the figure, the optimisation attacks use Adam: 800 iterations on MNIST, 1500 on CIFAR-10. On photographs with ViT-Base it is
400 instead of the paper's 5000, with products rounded to TF32.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from leakgauge.attacks import april_closed_form
from leakgauge.engine import TF32, Precision
from reproductions.april import study
from reproductions.april.attention_variants import as_asked
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

ATTACKS = {"dlg": "DLG", "ig": "Inverting Gradients", "tag": "TAG", "april": "APRIL", "closed form": "closed form"}
FRAMES = (10, 20, 50, 100, 200, 300, 400, 500, 700, 1000, 1250)


def compare(
    options: Options, results: Rows, images: Images, make: study.Make, steps: int, precision: Precision | None = None
) -> None:
    model = as_asked(make(images, architecture="A", quick=options.quick, seed=options.seed), options)
    victim, space = study.victim_of(model, images, options.device), study.space_of(images)
    seen = study.observed(victim, images)
    results.keep(f"{images.name}/original", images.x)
    for attack, name in ATTACKS.items():
        unit = f"{images.name}, {name}"
        if results.has(unit):
            continue
        if attack == "closed form":
            found, curves = [april_closed_form()(victim, one) for one in seen], {}
        else:
            matching = study.matching_attack(attack, steps=steps, frames=FRAMES, precision=precision)
            found = matching.many(victim, seen, seed=options.seed)
            curves = study.curves(found, seen, images)
        results.keep(f"{images.name}/{name}", study.shown(found, space))
        results.add(
            unit,
            attack=name,
            data=images.name,
            steps=steps if curves else 0,
            seconds=round(sum(one.seconds for one in found), 2),
            **study.measured(found, images),
            **curves,
        )


def run(options: Options, results: Rows) -> None:
    compare(options, results, study.digits(options, options.count(10)), study.small_model, options.steps(800))
    compare(options, results, study.objects(options, options.count(10)), study.small_model, options.steps(1500))
    if not options.quick:
        compare(options, results, study.large(options, 2), study.base_model, 400, TF32())


def draw(rows: list[Row], pictures: Pictures, out: Path, *, suffix: str = "") -> None:
    kind = "A, unscaled logits" if suffix else "architecture A"
    panels = [
        Panel(
            f"{data}, {kind}", "iteration", "mean squared error of the image",
            [
                Line(r["attack"], list(zip(r["frame_steps"], r["frame_mse"], strict=True)))
                for r in rows if r["data"] == data and "frame_steps" in r
            ],
            log_y=True,
        )
        for data in dict.fromkeys(r["data"] for r in rows)
    ]  # fmt: skip
    svg(out / f"architecture_a{suffix}.svg", panels, columns=3, title="Attacks on architecture A over the iterations")
    for data in dict.fromkeys(r["data"] for r in rows):
        names = ["original", *(r["attack"] for r in rows if r["data"] == data)]
        side = 64 if len(pictures.get(f"{data}/original", ())) > 3 else 112
        study.lines(out / f"architecture_a{suffix}_{data.split()[0].lower()}.png", pictures, data, names, side=side)


def table(rows: list[Row]) -> str:
    lines = ["| data | attack | steps | MSE | SSIM | seconds for all images |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r['data']} | {r['attack']} | {r['steps'] or '–'} | {r['mse']:.2g} | {r['ssim']:.3f} | {r['seconds']:.1f} |"
        for r in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    study.main(Part("architecture_a", run, draw), __doc__, unscaled=partial(draw, suffix=study.UNSCALED))
