"""Pictures of attacked cases side by side: the truth, what the adversary would keep, what the oracle would, the null run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from reproductions.common.drawing import grid
from reproductions.common.runner import Pictures, Row, Rows

HEADS = {"truth": "original", "attack": "adversary", "oracle": "oracle", "null": "null run"}


def keep(ledger: Rows, case: str, pictures: dict[str, Tensor]) -> None:
    for kind in HEADS:
        ledger.keep(f"{case}/{kind}", pictures[kind])


def side_by_side(path: Path, rows: list[Row], pictures: Pictures, *, side: int) -> None:
    """One line for each attacked image, in the order of the rows; no file where there is no picture."""
    lines: list[tuple[str, np.ndarray]] = []
    for case in (row["unit"] for row in rows):
        if all(f"{case}/{kind}" in pictures for kind in HEADS):
            four = np.stack([pictures[f"{case}/{kind}"] for kind in HEADS], 1)  # (images, 4, C, H, W)
            names = [case] if len(four) == 1 else [f"{case}, image {i + 1}" for i in range(len(four))]
            lines += zip(names, four, strict=True)
    if lines:
        grid(path, lines, side=side, heads=list(HEADS.values()))
