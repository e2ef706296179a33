"""Cuts an archive of picture sheets to its first images, where not all of it can travel.

    python -m reproductions.common.cut cifar10_train_a.zip DATA/cifar10_train.zip --images 20000
    python -m reproductions.common.cut mnist.npz DATA/mnist.npz --only x_test y_test

Sheets of 100 pictures are copied as they are. Of an npz archive only the arrays that are named are kept.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PER_SHEET = 100


def cut_sheets(source: Path, target: Path, images: int) -> int:
    """Copies the first ``images`` pictures and their labels; returns how many there are."""
    if images < PER_SHEET or images % PER_SHEET:
        raise SystemExit(f"--images must be a multiple of {PER_SHEET}, the pictures of a sheet; got {images}")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        labels = np.load(io.BytesIO(old.read("labels.npy")), allow_pickle=False)[:images]
        sheets = sorted(name for name in old.namelist() if name.startswith("sheet_"))[: -(-len(labels) // PER_SHEET)]
        for name in sheets:
            new.writestr(name, old.read(name))
        kept = io.BytesIO()
        np.save(kept, labels)
        new.writestr("labels.npy", kept.getvalue())
    return len(labels)


def cut_arrays(source: Path, target: Path, only: Sequence[str]) -> int:
    """Copies these arrays alone; returns how many rows the first has."""
    with np.load(source, allow_pickle=False) as old:
        kept = {name: old[name] for name in only}
    np.savez_compressed(target, **kept)
    return len(kept[only[0]])


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--images", type=int, help="how many, of a zip of sheets")
    parser.add_argument("--only", nargs="+", help="which arrays, of an npz")
    options = parser.parse_args(given)
    if (options.images is None) == (options.only is None):
        parser.error("give --images for a zip of sheets, or --only for an npz")
    options.target.parent.mkdir(parents=True, exist_ok=True)
    if options.only is not None:
        count = cut_arrays(options.source, options.target, options.only)
    else:
        count = cut_sheets(options.source, options.target, options.images)
    print(f"{options.target}: {count} images, {options.target.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
