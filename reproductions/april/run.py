"""The scripts of the APRIL study, in the order in which they are run.

    python -m reproductions.april.run [PART ...] --data FOLDER --out FOLDER
    python -m reproductions.april.run --list

The last three go beyond the paper. ``make_tables.py`` writes README.md from ``results/``.
"""

from __future__ import annotations

from reproductions.common.scripts import run_scripts

PARTS = (
    "table1", "table1_settings", "edges", "why_table1", "architecture_a", "why", "progress", "batches", "why_batches",
    "closed_form_batches", "width", "noise", "positions", "near_truth", "without_encoder",
    "ridge_under_noise", "closed_form_start", "text",
)  # fmt: skip

if __name__ == "__main__":
    run_scripts("reproductions.april", PARTS)
