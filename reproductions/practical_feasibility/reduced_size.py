"""What the checks of a verdict let pass on large images, at full size and averaged down (decision 22 in docs/adr).

    python -m reproductions.practical_feasibility.reduced_size IMAGES.npz

IMAGES.npz holds x, uint8, (N, H, W, 3) or (N, 3, H, W). Guesses are wrong
images, and the right one blurred to b×b; the checks are those of SSIM and PSNR against zero and the trivial baseline.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.audit.scoring import Scores, score_images_in_order, trivial_baseline
from leakgauge.audit.verdict import RECONSTRUCTED, REDUCED, Check

Counts = tuple[int, int]
BLURS = (4, 6, 8, 10, 14, 20, 28, 40, 56)


def passing(guesses: Tensor, truths: Tensor, trivial: Scores) -> Counts:
    """How many images pass at full and at reduced size; there is no null run, and nobody is asked which image it is."""
    scores = score_images_in_order(guesses, truths)
    return count(scores, trivial, RECONSTRUCTED), count(scores, trivial, REDUCED)


def count(scores: Scores, trivial: Scores, checks: tuple[Check, ...]) -> int:
    own = [check for check in checks if check.above != "null" and check.metric not in ("reid", "lpips")]
    if not all(check.measured(scores, trivial, trivial) for check in own):
        return 0  # images that have no reduced size
    return sum(all(check.passes(i, scores, trivial, trivial) for check in own) for i in range(len(scores.ssim)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    given = parser.parse_args()
    with np.load(given.images) as archive:
        x = torch.from_numpy(archive["x"])
    x = (x if x.shape[1] == 3 else x.permute(0, 3, 1, 2)).float() / 255
    number, side, trivial = len(x), x.shape[-1], trivial_baseline(x)
    wrong = [passing(x.roll(k, 0), x, trivial) for k in range(1, number)]
    full, reduced = (sum(counts) for counts in zip(*wrong, strict=True))
    print(f"wrong images, of {number * (number - 1)}: {full} pass at full size, {reduced} at reduced size", flush=True)
    for blur in BLURS:
        small = F.interpolate(x, size=(blur, blur), mode="area")
        full, reduced = passing(F.interpolate(small, size=(side, side), mode="bilinear"), x, trivial)
        print(f"blurred to {blur}×{blur}, of {number}: {full} pass at full size, {reduced} at reduced size", flush=True)


if __name__ == "__main__":
    main()
