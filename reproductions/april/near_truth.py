"""Fixed positions on CIFAR-10, from starts near the truth: is it the positions that hide the image, or the search?

    python -m reproductions.april.near_truth --data FOLDER

What ``positions.py`` does on MNIST, image by image, in about five minutes each on one CPU core.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from leakgauge.inversion import Adam, Descent, Given
from leakgauge.measures.image import ssim
from reproductions.april import positions, study
from reproductions.april.study import Options
from reproductions.common import page
from reproductions.common.runner import Part, Row, Rows

COUNT, STEPS, RATE, AWAY = 3, 3000, 0.1, 0.1


def run(options: Options, results: Rows) -> None:
    images = study.objects(options, 10)  # drawn as in ``positions``; the first ones are attacked
    victim, seen = positions.prepared("fixed", images, "B", options, 1.0)
    steps = options.steps(STEPS)
    attack = replace(study.matching_attack("l2", steps=steps), solver=Descent(Adam(RATE), steps, project=False))
    for number in range(options.count(COUNT)):
        unit, truth = f"image {number}", images.x[number : number + 1]
        if results.has(unit):
            continue
        if not options.allows(1.0):
            results.wait(unit)
            continue
        began, x = time.perf_counter(), victim.space.encode(images.x[number])
        found = replace(attack, start=Given(x, AWAY))(victim, seen[number], seed=options.seed)
        start = victim.space.decode((x + AWAY * torch.randn(x.shape, generator=torch.Generator().manual_seed(0)))[None])
        made = victim.space.decode(found.x)
        square = sum(float(value.double().square().sum()) for value in seen[number].signal.values())
        results.add(
            unit,
            data=images.name,
            steps=steps,
            lr=RATE,
            away=AWAY,
            relative_loss=found.loss / square,
            mse=float((made - truth).square().mean()),
            ssim=float(ssim(made, truth)),
            start_ssim=float(ssim(start, truth)),
            seconds=round(time.perf_counter() - began, 1),
        )


def table(rows: list[Row]) -> str:
    heads = ["image", "rate", "steps", "loss / ‖g*‖²", "MSE", "SSIM", "SSIM of the start"]
    cells = [
        [f"{number}", f"{r['lr']:g}", f"{r['steps']}", f"{r['relative_loss']:.1e}", f"{r['mse']:.1e}"]
        + [f"{r[name]:.3f}" for name in ("ssim", "start_ssim")]
        for number, r in enumerate(rows, 1)
    ]  # fmt: skip
    return page.table(heads, cells)


if __name__ == "__main__":
    study.main(Part("near_truth", run), __doc__)
