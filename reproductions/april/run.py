"""The scripts of the APRIL study, in the order in which they are run.

    python -m reproductions.april.run [PART ...] --data FOLDER --out FOLDER
    python -m reproductions.april.run --list

The last five go beyond the paper. ``make_tables.py`` writes README.md from ``results/``.
"""

from __future__ import annotations

from reproductions.common.scripts import parts, run_scripts

PARTS = parts(
    "table1", "table1_settings", "edges", "why_table1", "architecture_a", "architecture_a_unscaled = architecture_a --unscaled",
    "why", "progress", "batches", "why_batches", "closed_form_batches", "width", "noise", "noise_unscaled = noise --unscaled",
    "positions", "positions_unscaled = positions --unscaled", "near_truth", "without_encoder",
    "ridge_under_noise", "without_search", "closed_form_start", "text", "text_base = text --base",
)  # fmt: skip

if __name__ == "__main__":
    run_scripts("reproductions.april", PARTS)
