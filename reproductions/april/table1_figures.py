"""Draws Table 1: how similar the images of each attack are, and the first of them.

    python -m reproductions.april.table1_figures [--out FOLDER]

Reads ``table1.jsonl`` and, where it is there, ``table1.npz``. Pictures of ImageNet are not ours to show.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from reproductions.april import study
from reproductions.april.drawing import Line, Panel, grid, svg
from reproductions.april.study import Pictures, Row
from reproductions.april.table1 import DATA_SETS, NAMES, PAPER, chosen, common

SHOWN = 8


def panel(data_set: str, rows: list[Row]) -> Panel:
    """For each attack the share of images that are at least so similar, on the images that all attacks have."""
    images = common(rows)
    by_attack = {r["attack"]: sorted(chosen(r, "each_ssim", images).tolist(), reverse=True) for r in rows}
    lines = [
        Line(NAMES[name], [(value, (i + 1) / len(images)) for i, value in enumerate(by_attack[name])])
        for name in PAPER["mnist"]
        if name in by_attack
    ]
    title = f"{rows[0]['of']}, {rows[0]['model']}, {len(images)} image{'s' * (len(images) > 1)}"
    return Panel(title, "SSIM", "share of images with at least that", lines, bounds=(0, 1))


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    own = {data_set: [r for r in rows if r["data_set"] == data_set] for data_set in DATA_SETS}
    panels = [panel(data_set, found) for data_set, found in own.items() if found]
    svg(out / "table1.svg", panels, title="How similar reconstructions are")
    for data_set in ("mnist", "cifar10"):
        found = [("original", f"{data_set}_truth"), *((NAMES[a], f"{data_set}_{a}") for a in PAPER[data_set])]
        if all(key in pictures for _, key in found):
            grid(out / f"table1_{data_set}.png", [(name, pictures[key][:SHOWN]) for name, key in found])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=study.RESULTS, help="folder with the results, for the figures too")
    given = parser.parse_args()
    _, rows = study.read(given.out / "table1.jsonl")
    draw(rows, study.load(given.out / "table1.npz"), given.out)


if __name__ == "__main__":
    main()
