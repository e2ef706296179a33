"""Fixed positions: is it they that hide the image, or the search?

    python -m reproductions.april.near_truth --data FOLDER

What ``positions.py`` does on MNIST with architecture B, image by image, in about five minutes each on one CPU core: on CIFAR-10 from near
the truth, and from noise at two other rates; on MNIST with architecture A and logits that are not divided, from near the truth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from leakgauge.inversion import Adam, Descent, Given
from leakgauge.measures.image import ssim
from reproductions.april import positions, study
from reproductions.april.study import Options
from reproductions.common import page
from reproductions.common.gates import squared_length
from reproductions.common.runner import Part, Row, Rows

COUNT, STEPS, AWAY = 3, 3000, 0.1


@dataclass(frozen=True)
class Case:
    """``near`` starts from the truth plus N(0, ``AWAY``²), otherwise from noise. Architecture A has logits that are not divided."""

    data: str
    architecture: str
    near: bool
    rate: float

    def unit(self, image: int) -> str:
        start = "near the truth" if self.near else "noise"
        return f"{self.data}, {self.architecture}, start {start}, rate {self.rate:g}, image {image}"


CASES = (
    Case("CIFAR-10", "B", near=True, rate=0.1),
    Case("MNIST", "A", near=True, rate=0.1),
    Case("CIFAR-10", "B", near=False, rate=0.3),
    Case("CIFAR-10", "B", near=False, rate=0.03),
)


def run(options: Options, results: Rows) -> None:
    for case in CASES[:2] if options.quick else CASES:
        attack(case, options, results)


def attack(case: Case, options: Options, results: Rows) -> None:
    images = (study.digits if case.data == "MNIST" else study.objects)(options, 10)  # the first ones are attacked
    asked = replace(options, unscaled=case.architecture == "A")
    victim, seen = positions.prepared("fixed", images, case.architecture, asked, 1.0)
    steps = options.steps(STEPS)
    plain = replace(study.matching_attack("l2", steps=steps), solver=Descent(Adam(case.rate), steps, project=False))
    for number in range(options.count(COUNT)):
        unit, truth = case.unit(number), images.x[number : number + 1]
        if results.has(unit):
            continue
        if not options.allows(1.0):
            results.wait(unit)
            continue
        began, x = time.perf_counter(), victim.space.encode(images.x[number])
        searched = replace(plain, start=Given(x, AWAY)) if case.near else plain
        found = searched(victim, seen[number], seed=options.seed)
        start = x + AWAY * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
        made = victim.space.decode(found.x)
        square = squared_length(seen[number].signal)
        results.add(
            unit,
            data=images.name,
            architecture=case.architecture,
            near=case.near,
            steps=steps,
            lr=case.rate,
            relative_loss=found.loss / square,
            mse=float((made - truth).square().mean()),
            ssim=float(ssim(made, truth)),
            start_ssim=float(ssim(victim.space.decode(start[None]), truth)) if case.near else None,
            seconds=round(time.perf_counter() - began, 1),
        )


def table(rows: list[Row]) -> str:
    heads = ["data", "architecture", "start", "rate", "steps", "loss / ‖g*‖²", "MSE", "SSIM", "SSIM of the start"]
    cells = [
        [
            r["data"],
            r["architecture"],
            "near the truth" if r["near"] else "noise",
            f"{r['lr']:g}",
            f"{r['steps']}",
            f"{r['relative_loss']:.1e}",
            f"{r['mse']:.1e}",
            f"{r['ssim']:.3f}",
            "" if r["start_ssim"] is None else f"{r['start_ssim']:.3f}",
        ]
        for r in rows
    ]
    return page.table(heads, cells)


if __name__ == "__main__":
    study.main(Part("near_truth", run), __doc__)
