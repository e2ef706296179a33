"""Gathers what `gpu_table1.sh` reads into two folders, each small enough to be carried in a call of its own.

    python -m reproductions.april.pack_data SOURCE OUT

SOURCE holds mnist.npz, cifar10_train_a.zip, cifar10_test.zip and imagenet_500_224.zip. OUT/first then holds the test images of MNIST and
CIFAR-10 and 32 ImageNet images (x uint8 (32, 3, 224, 224), y), enough for all but the trainings; OUT/second half of CIFAR-10's training
images. The studies want them in one folder where they run.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

from reproductions.practical_feasibility.pack import copy_imagenet, size

IMAGES = 32
"""Thirty of the table, and two on which settings are tried."""


def copy_test_split(source: Path, out: Path) -> None:
    with np.load(source) as archive:
        np.savez_compressed(out, x_test=archive["x_test"], y_test=archive["y_test"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    first, second = given.out / "first", given.out / "second"
    for folder in (first, second):
        folder.mkdir(parents=True, exist_ok=True)
    copy_test_split(given.source / "mnist.npz", first / "mnist.npz")
    shutil.copyfile(given.source / "cifar10_test.zip", first / "cifar10_test.zip")
    copy_imagenet(given.source / "imagenet_500_224.zip", first / "imagenet.npz", IMAGES)
    shutil.copyfile(given.source / "cifar10_train_a.zip", second / "cifar10_train_a.zip")
    for folder in (first, second):
        print(f"{folder}: {size(folder) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
