"""A scan of cuts made by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

from leakgauge.audit.case import Case
from leakgauge.audit.questions import split_records
from leakgauge.audit.questions.split_records import DECODER, RIDGE, Conclusion, CutRecord, ScanPlan

CUTS = ["stem.relu", "stage1.a_block_with_quite_a_long_name.pool", "stage2.<pool>", "stage3.pool", "head"]
RIDGE_FVU = [0.04, 0.2, math.nan, 0.45, 0.7]


def scanned_strip(folder: Path, name: str, seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 4 * 9 - 1, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name)
    return name


def make_scan(folder: Path, *, names: list[str] = CUTS, fvu: list[float] = RIDGE_FVU, finished: bool = True) -> None:
    """A scan by hand: five cuts, of which one refused and one was also attacked by decoders."""
    rng = np.random.default_rng(0)
    sizes = (
        {"bytes": 4000 // (i + 1), "edge_flops": 1000000 * i, "edge_share": i / len(names)} for i in range(len(names))
    )
    cuts = tuple({"name": name, "shape": [8, 4, 4], **size} for name, size in zip(names, sizes, strict=True))
    plan = ScanPlan(
        case=Case(model="vgg"),
        cuts=cuts, threshold=0.4, epochs=12, budget=None, require="", numbers="fp32", raw_bytes=1200, jpeg_bytes=900.0,
        auxiliary=80, tested=20, traced="torch.export", labels=tuple(i % 12 for i in range(30)),
        truth=scanned_strip(folder, "truth.png", 0), shown=4, versions={"torch": "2"}, command="leakgauge scan vgg --seed 0",
        notes=("note <one>",),
    )  # fmt: skip
    split_records.save_plan(folder, plan)
    for i, (name, value) in enumerate(zip(names, fvu, strict=True)):
        refused = math.isnan(value)
        risk = {"refusal": "the features hold <NaN>", "seconds": 1.0} if refused else {
            "fvu": value, "fvu_low": value - 0.02, "fvu_high": value + 0.02, "ssim": 0.5, "reidentified": 0.5,
            "accuracy": 0.9, "within": 0.5, "effective_rank": 12.0, "attribute_auc": 0.93, "seconds": 1.0,
        }  # fmt: skip
        places = () if refused else tuple((float(a), float(b)) for a, b in rng.random((30, 2)).round(3))
        picture = "" if refused else scanned_strip(folder, f"{i}.png", i)
        split_records.append(folder, CutRecord(name, RIDGE, 0, risk, picture, places))
    for epochs, value in ((1, 0.9), (12, 0.42)):
        risk = {"fvu": value, "seconds": 1.0}
        split_records.append(
            folder, CutRecord(names[3], DECODER, epochs, risk, scanned_strip(folder, f"d{epochs}.png", 9))
        )
    if finished:
        best = (0.04, 0.2, 0.42, 0.42, 0.7) if names is CUTS else tuple(fvu)
        line = tuple(0.04 + 0.66 * i / (len(names) - 1) for i in range(len(names)))
        found = Conclusion(names[3], names[1], True, (names[0], names[3]), best, line, names[2], 0.63, 13, 60)
        split_records.save_conclusion(folder, found)
