"""Trains the embedded diffusion prior on Fashion-MNIST's training images and writes it as ``priors/weights/fashion.safetensors``.

    python tools/train_prior.py FOLDER_OF_FASHION_MNIST_IDX_FILES [--steps 6000] [--cache FOLDER]

FOLDER holds the idx files (in Debian the package dataset-fashion-mnist puts them into /usr/share/datasets/fashion-mnist). The 4,000
embedded images, which the package attacks, are left out, and so is every image equal to one of them. One thread, bfloat16, fixed seed;
with ``--cache`` an interrupted training is resumed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from leakgauge.data.embedded import fashion
from leakgauge.data.standard import read_mnist
from leakgauge.inversion import watching
from leakgauge.priors.fit import fit_diffusion

OUT = Path(__file__).parents[1] / "src/leakgauge/priors/weights"
WIDTH, BATCH, LR = 32, 64, 2e-3


def without(images: Tensor, excluded: Tensor) -> Tensor:
    """Which of ``images`` are not among ``excluded``, pixel by pixel."""
    taken = {one.mul(255).round().byte().numpy().tobytes() for one in excluded}
    return torch.tensor([one.mul(255).round().byte().numpy().tobytes() not in taken for one in images])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fashion_mnist", type=Path, help="folder with the idx files of Fashion-MNIST")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--stop", type=int, help="take the averaged weights after this many of the steps")
    parser.add_argument("--cache", type=Path, help="where checkpoints go")
    given = parser.parse_args()
    torch.set_num_threads(1)
    x, y = read_mnist(given.fashion_mnist / "train-images-idx3-ubyte.gz")
    free = without(x, torch.cat([fashion("train")[0], fashion("test")[0]]))
    print(f"{int(free.sum())} of {len(x)} images are not among those that the package attacks", flush=True)
    began, first = time.perf_counter(), []

    def report(done: int, total: int) -> None:
        first.append(done) if not first else None
        if done % 250 == 0:
            spent = time.perf_counter() - began
            left = spent / max(1, done - first[0]) * (total - done)
            print(f"step {done}/{total}, {spent:.0f} s, about {left:.0f} s left", flush=True)

    with watching(report):
        prior = fit_diffusion(
            x[free],
            labels=y[free],
            width=WIDTH,
            steps=given.steps,
            batch=BATCH,
            lr=LR,
            bf16=True,
            stop=given.stop,
            cache=given.cache,
            seed=0,
        )
    OUT.mkdir(parents=True, exist_ok=True)
    prior.save(OUT / "fashion.safetensors", half=True)
    print(prior)
    print(f"{(OUT / 'fashion.safetensors').stat().st_size} bytes")


if __name__ == "__main__":
    main()
