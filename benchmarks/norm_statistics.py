"""What knowledge of normalisation statistics adds to a training-mode attack: exact, by proxy, naive or none.

python -m benchmarks.norm_statistics [--steps 200] [--batches 3] [--weight 0.1]

The embedded CNN in train mode, batches of four held-out Fashion-MNIST images of different classes, labels given. One row per
source of statistics: mean over the batches of PSNR, SSIM (paired) and of the mean over all pairs, which is what some public
code reports as batch SSIM and whose ceiling is far below 1.
"""

from __future__ import annotations

import argparse

import torch

from leakgauge import Auxiliary, Buffers, Labels, Size, share
from leakgauge.attacks import feasibility, huang
from leakgauge.audit import Case, embedded, score
from leakgauge.channels import Gradient
from leakgauge.core import Reveal, Victim
from leakgauge.inversion import Guided
from leakgauge.measures.image import ssim

SIZE = 4


def all_pairs(victim: Victim, guesses: torch.Tensor, truths: torch.Tensor) -> float:
    """Mean SSIM over every pair of a reconstruction and an original, as if order did not matter."""
    a, b = victim.space.decode(guesses), victim.space.decode(truths)
    return float(torch.stack([ssim(a, b.roll(i, 0)) for i in range(len(b))]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--weight", type=float, default=0.1, help="of the statistics in the objective")
    given = parser.parse_args()
    options = {"steps": given.steps, "statistics": given.weight}
    torch.set_num_threads(1)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    ceiling: list[float] = []
    for number in range(given.batches):
        case = Case(mode="train", batch_size=SIZE, first=SIZE * number)
        setup = embedded(case)
        victim, (x, y) = setup.victim, setup.private(case)
        others = Auxiliary(victim.space.encode(setup.images[-100:]))
        ceiling.append(all_pairs(victim, x, x))
        known: tuple[Reveal, ...] = (Size(), Labels())
        attacks: dict[str, tuple[Guided, tuple[Reveal, ...]]] = {
            "exact (statistics shared)": (feasibility(**options), (*known, Buffers())),
            "proxy (not shared)": (feasibility(**options), (*known, others)),
            "running, naive (Huang)": (huang(**options), (*known, Buffers())),
            "none": (feasibility(steps=given.steps, statistics=0.0), known),
            "null run": (feasibility(steps=given.steps), known),
        }
        for name, (attack, reveal) in attacks.items():
            seen = share(victim, Gradient(), x, y, reveal=reveal)
            found = (attack.blind() if name == "null run" else attack)(victim, seen)
            means = score(found, x, y, space=victim.space).means()
            rows.setdefault(name, []).append((means["psnr"], means["ssim"], all_pairs(victim, found.x, x)))
    print(f"{given.batches} batches of {SIZE}, {given.steps} steps, weight {given.weight:g}\n")
    print("| statistics | PSNR | SSIM | SSIM over all pairs |")
    print("|---|---|---|---|")
    for name, values in rows.items():
        psnr, paired, every = (sum(column) / len(values) for column in zip(*values, strict=True))
        print(f"| {name} | {psnr:.1f} dB | {paired:.3f} | {every:.3f} |", flush=True)
    print(f"| the originals themselves | ∞ | 1 | {sum(ceiling) / len(ceiling):.3f} |")


if __name__ == "__main__":
    main()
