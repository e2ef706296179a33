"""Fig. 4: how like the image its starts are, over many images: are the paper's starts those of a hard image, or of other noise?

python -m reproductions.practical_feasibility.start_scores --data FOLDER      (seconds on a CPU)
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from leakgauge.channels import Gradient
from leakgauge.core import NoisyCopy, Pixels, Victim, share
from leakgauge.measures.image import ssim
from reproductions.common import runner
from reproductions.common.runner import Options, Part, Row, Rows, measured_on, read, run_part
from reproductions.common.sheets import CIFAR_SPACE
from reproductions.practical_feasibility import control

PAPER = {0.1: 0.66, 0.3: 0.36, 0.5: 0.16, 0.7: 0.05, 0.9: 0.01}
"""SSIM of the paper's starts by the share of noise."""
IMAGES = 50


def run(options: Options, results: Rows) -> None:
    x, y = control.cifar(options, "test")
    count = 2 if options.quick else IMAGES
    space = Pixels((3, 32, 32), **CIFAR_SPACE)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 32 * 32, control.CLASSES)
    )  # the noise does not ask what is attacked
    victim = Victim(model, space)
    for noise in PAPER:
        if results.has(f"share {noise}"):
            continue
        made = []
        for i in range(count):
            one = space.encode(x[i : i + 1])
            seen = share(victim, Gradient(), one, y[i : i + 1], reveal=[NoisyCopy(noise)], seed=options.seed + i)
            assert seen.near is not None
            made.append(space.decode(space.project(seen.near)))
        scores = ssim(torch.cat(made), x[:count])
        row: Row = {"share": noise, "images": count, "ssim": float(scores.mean()), "deviation": float(scores.std())}
        results.add(f"share {noise}", row)


def sentence(folder: Path) -> str:
    """For the page: the paper's starts beside these."""
    path = folder / "start_scores.jsonl"
    rows = read(path)
    paper, ours, apart = (
        ", ".join(f"{value:.2f}" for value in values)
        for values in (PAPER.values(), [r["ssim"] for r in rows], [r["deviation"] for r in rows])
    )
    shares = ", ".join(f"{r['share']:g}" for r in rows)
    return (
        f"The paper's starts score {paper} at shares of {shares}. The same noise on the first {rows[0]['images']} test images "
        f"gives {ours} (standard deviations {apart}), so its image is harder than most, or its noise another. {measured_on(path)}"
    )


def main() -> None:
    given = runner.parser(__doc__, out=control.RESULTS).parse_args()
    options = Options.of(given)
    run_part(Part("start_scores", run), replace(options, device=torch.device("cpu")))


if __name__ == "__main__":
    main()
