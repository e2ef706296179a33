"""Rows of all runs of the study, found by what they say of themselves."""

from __future__ import annotations

from pathlib import Path

from reproductions.common.runner import Row, read

RESULTS = Path(__file__).parent / "results" / "run.jsonl"
PAPERS_DECODER = "deconvolution, paper"
STRONGER = "residual, one-cycle"
LONGER, PLATEAU = "run_100_epochs", "run_100_epochs_plateau"
"""Files of decoders with the paper's 100 epochs: on the networks of ``run.jsonl``, and on networks by the paper's own recipe."""


def all_rows(folder: Path = RESULTS.parent) -> list[Row]:
    """Every row once: of two runs of a part, those with more decoder epochs, as soon as that run has all the part's cases.

    A case is what a table or a curve compares: labels, block and decoder. Parts are taken over whole, so that no comparison mixes
    epochs; seeds that were run with fewer epochs alone are then left out. What a longer run has of a part that it has not finished is
    in the part ``NAME-100``, and rows of the paper's own recipe in ``NAME-plateau``.
    """
    short, longer, plateau = (_read(folder / f"{name}.jsonl") for name in ("run", LONGER, PLATEAU))
    cases = {part: {_case(row) for row in short if row.get("part") == part} for part in _parts(longer)}
    whole = {part for part, wanted in cases.items() if wanted <= {_case(row) for row in longer}}
    networks = {row["unit"]: row for row in longer if row["unit"].startswith("target/")}
    kept = [networks.pop(row["unit"], row) for row in short if row.get("part") not in whole]
    logged = [row for row in longer if row.get("part") in ("training-images", "clusters")]
    begun = [row | {"part": f"{row['part']}-100"} for row in longer if row.get("part") in cases.keys() - whole]
    renamed = [row | {"part": f"{row['part']}-plateau"} for row in plateau if "part" in row]
    return [*kept, *networks.values(), *(row for row in longer if row.get("part") in whole), *logged, *begun, *renamed]


def _read(path: Path) -> list[Row]:
    return read(path) if path.is_file() else []


def _parts(rows: list[Row]) -> set[str]:
    return {row["part"] for row in rows if "part" in row and "decoder" in row}


def _case(row: Row) -> tuple[object, ...]:
    return tuple(row.get(name) for name in ("part", "labels", "block", "decoder"))


def epochs_of(rows: list[Row], part: str, decoder: str | None = PAPERS_DECODER) -> int:
    """Epochs of the decoders of a part, which are the same at all its blocks."""
    own = [row["epochs"] for row in matching(rows, part=part) if decoder in (None, row.get("decoder"))]
    return max(own)


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


def at_hundred_epochs(rows: list[Row], network: str, block: int) -> float | None:
    """The error in the paper's unit of the paper's decoder after 100 epochs, one-hot labels; None if not measured.

    It is in the curve where that has 100 epochs; else for VGG19 in the part ``zone``.
    """
    wanted = {"labels": "one-hot", "block": block, "decoder": PAPERS_DECODER, "epochs": 100}
    for part in (f"{network}-curve", f"{network}-curve-100"):
        if in_curve := chosen(rows, "test_mse_paper", part=part, **wanted):
            return in_curve[0]
    return next(iter(chosen(rows, "test_mse_paper", unit=f"zone/decoder/features.{block - 1}/100/None")), None)
