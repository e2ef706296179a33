"""The scripts of the feasibility study, in the order in which they are run.

    python -m reproductions.practical_feasibility.run [PART ...] --data FOLDER --out FOLDER
    python -m reproductions.practical_feasibility.run --list

``accuracy`` trains the networks that ``starts --trained``, ``shared_statistics`` and ``small`` attack. ``tables.py`` writes README.md
from ``results/``.
"""

from __future__ import annotations

from reproductions.common.scripts import parts, run_scripts

PARTS = parts(
    "freeze_thresholds", "freeze_layout", "control", "control_longer", "train_mode", "train_mode_longer", "accuracy",
    "starts", "start_scores", "closed_form", "stems", "shared_statistics",
    "shared_statistics_longer = shared_statistics --longer 2 --restarts 4", "small", "large", "detection",
)  # fmt: skip

if __name__ == "__main__":
    run_scripts("reproductions.practical_feasibility", PARTS)
