"""Rows of all runs of the study, found by what they say of themselves."""

from __future__ import annotations

from pathlib import Path

from reproductions.common import gates
from reproductions.common.runner import Row, read

RESULTS = Path(__file__).parent / "results" / "run.jsonl"
PAPERS_DECODER = "deconvolution, paper"
STRONGER = "residual, one-cycle"
LONGER, PLATEAU, WHOLE = "run_100_epochs", "run_100_epochs_plateau", "run_100_epochs_plateau_300_target"
"""Files of decoders with the paper's 100 epochs: on the networks of ``run.jsonl``, on networks by the paper's own recipe for 100 epochs,
and for all of its 300, which take the place of those."""


def all_rows(folder: Path = RESULTS.parent) -> list[Row]:
    """Every row of the study; those of 100 decoder epochs are in the part ``NAME-100``, of the paper's own recipe ``NAME-plateau-100``.

    A network that was trained again for the longer run takes the place of the first.
    """
    short, longer, plateau, whole = (_read(folder / f"{name}.jsonl") for name in ("run", LONGER, PLATEAU, WHOLE))
    again = {row["unit"]: row for row in longer if "part" not in row}
    first = [row for row in short if row["unit"] not in again]
    checked = _read(folder / "splits.jsonl")
    return [*checked, *first, *again.values(), *_renamed(longer, "100"), *_renamed(whole or plateau, "plateau-100")]


def _renamed(rows: list[Row], kind: str) -> list[Row]:
    return [row | {"part": f"{row['part']}-{kind}"} for row in rows if "part" in row]


def _read(path: Path) -> list[Row]:
    return read(path) if path.is_file() else []


def matching(rows: list[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def chosen(rows: list[Row], column: str, **wanted: object) -> list[float]:
    return [row[column] for row in matching(rows, **wanted) if column in row]


def by_block(rows: list[Row], column: str, **wanted: object) -> dict[int, list[float]]:
    """The column at every block in order of depth, with one value for each seed in order of the seeds."""
    found = sorted((r for r in matching(rows, **wanted) if column in r), key=lambda r: (r["block"], r["seed"]))
    return {
        block: [r[column] for r in found if r["block"] == block] for block in dict.fromkeys(r["block"] for r in found)
    }


TESTED = {
    "cifar10": (10_000, 0.1033),
    "cifar10, 2 classes": (1984, 1 / 2),
    "cifar10, 5 classes": (2000, 1 / 5),
    "cifar10, 10 classes": (2000, 1 / 10),
    "kmnist": (2000, 0.1095),
    "faces": (800, 0.7175),
}
"""Test images and the share of their largest class, for rows of networks that do not hold their gates."""


def own(row: Row) -> Row:
    """The gates of a row: those it brings along, or for a network the one that follows from its accuracy."""
    if "gates" in row or not row["unit"].startswith("target/"):
        return {"gates": row.get("gates", [])}
    images, chance = TESTED[row["data"]]
    return {"gates": [gates.accurate(row["accuracy"], images, chance=chance).row()]}


def learned(rows: list[Row], network: str, data: str = "cifar10", **wanted: object) -> bool:
    """Whether the data and all trainings of this network on them passed their gates."""
    trainings = [
        row for row in matching(rows, network=network, data=data, **wanted) if row["unit"].startswith("target/")
    ]
    return gates.hold(map(own, [*matching(rows, unit=f"splits/{data}"), *trainings]))
