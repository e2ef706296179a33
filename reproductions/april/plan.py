"""What `gpu_table1.sh` still has to do, and about how many seconds that takes on an H200.

    python -m reproductions.april.plan [--work FOLDER] [--training-images 25000]

Reads what is done in FOLDER (results/ by default). Parts run one after another. Sources of the paces: ``results/table1.jsonl``,
``benchmarks/results/fused_h200.jsonl``, ``results/batches.jsonl`` (its batch of 24 comes from three processes that took turns: a third of
its seconds).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reproductions.april import batches, study, table1, width
from reproductions.april.cells import SETTINGS, whole
from reproductions.april.pieces import Pieces
from reproductions.april.study import Row
from reproductions.april.why_batches import ATTACKED, ON_A_GPU

SMALL_PACE = {"april": 120.7 / 750, "dlg": 120.9 / 750, "tag": 175.7 / 750, "ig": 81.8 / 750}
"""ms for an image and a step of the small model: seconds for 750,000 of them (CIFAR-10, pieces of 250)."""
BASE_PACE = {"april": 331.9 / 120, "dlg": 348.9 / 120, "tag": 212.5 / 64.56, "ig": 24.4 / 6 / 1.39}
"""The same for ViT-Base in TF32 with fused kernels, 24 images at a time: seconds for 120,000 of them (TAG: 64,560). Six at a time took
APRIL 1.39 times as long each (115.8 s for 30,000); IG by ``benchmarks/fused.py`` with six, and that ratio."""
LATENCY = {"small": 6.0, "base": 15.0}
"""ms of a step however few the images: 1,200 and 3,300 kernels of about 5 µs."""
SET_UP = {"small": 3.0, "base": 6.0}
"""Seconds before the first recorded step of an attack."""
BATCH_STEP = {4: 22.0, 24: 58.0}
"""ms of a step on ViT-Base: 110.2 s for 5000 steps; 34.8 s for 200 in three lanes, a third of it."""
TRAINING = 66.0
"""Seconds for three models of any width on 50,000 images: five widths on 25,000 took 165 s with loading."""


@dataclass(frozen=True)
class Part:
    """A piece of work of a stage that is not done yet."""

    stage: str
    name: str
    seconds: float
    left: str


def cells(work: Path) -> Iterator[Part]:
    pieces = Pieces(work / "table1_pieces.jsonl", {"quick": False, "seed": 0})
    rows = read(work / "table1.jsonl")
    for data_set, kind in table1.DATA_SETS.items():
        size = "base" if data_set == "imagenet" else "small"
        paces = BASE_PACE if size == "base" else SMALL_PACE
        for attack, pace in paces.items():
            if any((r["data_set"], r["attack"]) == (data_set, attack) and whole(r) for r in rows):
                continue
            key = {"data_set": data_set, "attack": attack}
            done = sum(row["amount"] for row in pieces.done(part="piece", **key))
            tried = {row["setting"] for row in pieces.done(part="setting", **key)}
            settings = [one for one in SETTINGS[attack] if repr(one) not in tried]
            groups = [len(settings)] if attack != "ig" else [1] * len(settings)  # IG's are tried one after another
            seconds = sum(run(size, kind.steps // kind.shorter, n * kind.tried * pace) for n in groups if n)
            for first in range(done, kind.count, kind.piece):
                seconds += run(size, kind.steps, min(kind.piece, kind.count - first) * pace)
            stage = {"imagenet": "imagenet", "cifar10_trained": "rest"}.get(data_set, "small")
            yield Part(stage, f"{data_set} {attack}", seconds, f"{kind.count - done} of {kind.count} images")


def run(size: str, steps: int, milliseconds: float) -> float:
    """Seconds of one attack whose step takes so long where it fills the GPU."""
    return SET_UP[size] + steps * max(LATENCY[size], milliseconds) / 1000


def studies(work: Path, training_images: int) -> Iterator[Part]:
    found = study.Results(read(work / "batches.jsonl"))
    for size in batches.SIZES:
        if not found.has(model="CIFAR model", batch=size, rule=batches.RULE, steps=1500):
            yield Part("small", f"batches, CIFAR model {size}", 12.0, "1500 steps")
    for size, milliseconds in BATCH_STEP.items():
        done = [
            r["steps"] for r in found.rows if (r["model"], r["batch"], r["rule"]) == ("ViT-Base", size, batches.RULE)
        ]
        left = 5000 - max(done, default=0)
        if left:
            seconds = SET_UP["base"] + left * milliseconds / 1000
            yield Part("small" if size == 4 else "rest", f"batches, ViT-Base {size}", seconds, f"{left} steps")
    found = study.Results(read(work / "why_batches.jsonl"))
    for size, steps in ATTACKED + ON_A_GPU:
        if not found.has(part="attack", batch=size, steps=steps):
            yield Part("rest", f"why_batches, attack on {size}", 12.0 * steps / 1500, f"{steps} steps")
    found = study.Results(read(work / "width.jsonl"))
    cases = [(a, lr, w) for a, rates in width.RATES.items() for lr in rates for w in width.CIFAR_WIDTHS]
    missing = [(a, lr, w) for a, lr, w in cases if not found.has(part="accuracy", architecture=a, lr=lr, width=w)]
    if missing:
        seconds = TRAINING * len(missing) * training_images / 50_000
        yield Part("small", "width, accuracies", seconds, f"{len(missing)} trainings")


def read(path: Path) -> list[Row]:
    """The rows of a full-size run."""
    facts, rows = study.read(path) if path.is_file() else ({"quick": True}, [])
    return [] if facts["quick"] else rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=study.RESULTS)
    parser.add_argument("--training-images", type=int, default=25_000)
    given = parser.parse_args()
    parts = [*cells(given.work), *studies(given.work, given.training_images)]
    for stage in ("small", "imagenet", "rest"):
        own = [part for part in parts if part.stage == stage]
        for part in own:
            print(f"{stage:9} {part.name:32} {part.seconds:5.0f} s  {part.left}")
        print(f"{stage:9} {'together':32} {sum(part.seconds for part in own):5.0f} s", flush=True)


if __name__ == "__main__":
    main()
