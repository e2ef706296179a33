"""Adds layout and pieces to rows that were measured before these were, and mends ranks, from the pictures that were kept of them.

    python -m reproductions.practical_feasibility.score_pictures PART --data FOLDER [--out FOLDER]

Ranks were one too high where normalising an image and bringing it back had changed its last digits: it was taken for its own rival.
Pictures are kept in 8 bits and at most 112 pixels a side, averaged down; the means of 8×8 blocks are the same but for that rounding, ranks
are those of the smaller pictures. Pieces are for networks at 32×32, whose pictures were kept as large as they are. What a row has is left
as it is, and so are rows without pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.audit.scoring import score_images, trivial_baseline
from leakgauge.errors import Inapplicable
from leakgauge.families.patches import patch_side
from reproductions.practical_feasibility import detection, setting
from reproductions.practical_feasibility.accuracy import NETWORKS
from reproductions.practical_feasibility.ledger import Pictures, Row, line, load, read
from reproductions.practical_feasibility.setting import RESULTS, Options

SOURCES = {
    "small": lambda options: setting.cifar_test(options, 200).x,
    "large": lambda options: setting.imagenet(options, 20).x,
    "shared_statistics": lambda options: setting.cifar_test(options, 200).x,
    "detection": lambda options: detection.cells(options)[1][:100],
}
"""The images among which each part re-identifies."""
NORMALISED = ("small", "large", "shared_statistics")
"""Parts whose images are normalised."""
ROUNDED = 2 / 255
"""How far a kept picture may be from its original."""


def add_layout(row: Row, pictures: Pictures, pool: Tensor, *, mend_ranks: bool) -> bool:
    """Into the scores of the row, where they lack it; says whether it did."""
    if "attack" not in row or "layout" in row["attack"] or f"{row['case']}/truth" not in pictures:
        return False
    shown = {kind: torch.from_numpy(pictures[name]).float() / 255 for kind, name in _names(row["case"], pictures)}
    truths = shown["truth"]
    others = _without(truths, pool)
    for kind in shown.keys() & {"attack", "oracle"}:
        scores = score_images(shown[kind], truths, pool=others)
        row[kind] |= {"layout": scores.layout, "layout_rank": scores.layout_rank}
        if mend_ranks:
            row[kind]["reid"] = scores.reid
    if "null" in shown:
        row["null"]["layout"] = score_images(shown["null"], truths).layout
    row["baseline"]["layout"] = trivial_baseline(truths).layout
    row["layout_from_pictures"] = True
    return True


def add_pieces(row: Row, pictures: Pictures, pool: Tensor) -> bool:
    """Into the scores of a row whose network cuts images into patches, where they lack them; says whether it did."""
    if "attack" not in row or row["attack"].get("pieces") or f"{row['case']}/truth" not in pictures:
        return False
    try:  # a quick one has patches as large
        model, space, _ = NETWORKS[row["network"]].made(classes=10, seed=0, quick=True)
    except Inapplicable:
        return False
    tile = patch_side(model, space.shape)
    if tile is None:
        return False
    shown = {kind: torch.from_numpy(pictures[name]).float() / 255 for kind, name in _names(row["case"], pictures)}
    others = _without(shown["truth"], pool)
    for kind in ("attack", "oracle", "null"):
        scores = score_images(shown[kind], shown["truth"], pool=others, tile=tile)
        row[kind] |= {"pieces": scores.pieces, "pieces_lead": scores.pieces_lead}
    row["pieces_from_pictures"] = True
    return True


def _without(truths: Tensor, pool: Tensor) -> Tensor:
    """The images of the pool that are none of ``truths``."""
    return pool[[all(float((one - truth).abs().max()) > ROUNDED for truth in truths) for one in pool]]


def _names(case: str, pictures: Pictures) -> list[tuple[str, str]]:
    return [(kind, f"{case}/{kind}") for kind in ("truth", "attack", "oracle", "null") if f"{case}/{kind}" in pictures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=sorted(SOURCES))
    parser.add_argument("--data", type=Path, help="folder made by pack.py; embedded images without it")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder with the results")
    given = parser.parse_args()
    path = given.out / f"{given.part}.jsonl"
    facts, rows = read(path)
    options = Options(facts["quick"], torch.device("cpu"), facts["seed"], given.data, given.out, given.out)
    pictures = load(path.with_suffix(".npz"))
    if given.part == "shared_statistics":  # it has one truth for all, and keeps what the adversary has alone
        pictures = {f"{case}/attack": x for case, x in pictures.items() if case != "truth"} | {
            f"{case}/truth": pictures["truth"] for case in pictures if case != "truth"
        }
    kept = next(iter(pictures.values()))
    pool = F.adaptive_avg_pool2d(SOURCES[given.part](options), kept.shape[-2:])
    done = sum(add_layout(row, pictures, pool, mend_ranks=given.part in NORMALISED) for row in rows)
    pieces = sum(add_pieces(row, pictures, pool) for row in rows) if given.part == "small" else 0
    part = path.with_suffix(".part")
    part.write_text("".join(line(row) for row in [facts, *rows]), encoding="utf-8")
    part.replace(path)
    print(f"{path}: {done} of {sum('attack' in row for row in rows)} rows got a layout, {pieces} pieces")


if __name__ == "__main__":
    main()
