"""Makes the sample files in ``src/leakgauge/data/embedded/``.

    python tools/make_embedded_data.py FOLDER_OF_FASHION_MNIST_IDX_FILES

The photographs come from the installed scikit-image, of which only files shipped in its wheel are used.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import skimage.data
from PIL import Image

from leakgauge.data.embedded import PHOTOGRAPHS
from leakgauge.data.standard import read_idx

OUT = Path(__file__).parents[1] / "src/leakgauge/data/embedded"
COLUMNS = 50
FILES = {"train": ("train", 300), "test": ("t10k", 100)}  # split: (prefix of the idx files, images per class)


def fashion_sheet(folder: Path, split: str) -> None:
    """The first images of each class, classes taking turns, as one lossless grey sheet with a text file of labels."""
    prefix, per_class = FILES[split]
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz").numpy()
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz").numpy()
    chosen = np.stack([np.flatnonzero(labels == c)[:per_class] for c in range(10)], axis=1).ravel()
    tiles = images[chosen].reshape(-1, COLUMNS, 28, 28).swapaxes(1, 2).reshape(-1, COLUMNS * 28)
    Image.fromarray(tiles).save(OUT / f"fashion-{split}.png", optimize=True)
    rows = labels[chosen].reshape(-1, COLUMNS)
    (OUT / f"fashion-{split}.txt").write_text("".join("".join(map(str, row)) + "\n" for row in rows), "ascii")


def photograph(name: str, *, side: int = 224) -> None:
    """The central square at ``side`` pixels; grey pictures get three equal channels."""
    picture = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
    edge = min(picture.size)
    left, top = ((n - edge) // 2 for n in picture.size)
    square = picture.crop((left, top, left + edge, top + edge)).resize((side, side), Image.Resampling.LANCZOS)
    square.save(OUT / f"photo-{name}.webp", quality=90, method=6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fashion_mnist", type=Path, help="folder with the four idx files of Fashion-MNIST")
    folder = parser.parse_args().fashion_mnist
    OUT.mkdir(parents=True, exist_ok=True)
    for split in FILES:
        fashion_sheet(folder, split)
    for name in PHOTOGRAPHS:
        photograph(name)
    total = 0
    for file in sorted(OUT.iterdir()):
        print(f"{file.stat().st_size:>9}  {file.name}")
        total += file.stat().st_size
    print(f"{total:>9}  together")


if __name__ == "__main__":
    main()
