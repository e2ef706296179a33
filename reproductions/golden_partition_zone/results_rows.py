"""Rows of ``results/run.jsonl``, found by what they say of themselves."""

from __future__ import annotations

from pathlib import Path

from reproductions.common.runner import Row

RESULTS = Path(__file__).parent / "results" / "run.jsonl"
PAPERS_DECODER = "deconvolution, paper"
STRONGER = "residual, one-cycle"


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

    For VGG19 it is trained by the part ``zone``, for IR-152 by ``ir152-epochs``.
    """
    keys = {
        "vgg19": f"zone/decoder/features.{block - 1}/100/None",
        "ir152": f"ir152-epochs/cifar10/one-hot/0/{block}/{PAPERS_DECODER}",
    }
    return next(iter(chosen(rows, "test_mse_paper", unit=keys[network])), None)
