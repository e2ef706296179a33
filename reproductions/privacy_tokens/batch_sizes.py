"""Figures 16-19: the published number for other batch sizes of training; the middle one, 20, is that of Table 1."""

from __future__ import annotations

from dataclasses import replace

from reproductions.common.runner import Rows
from reproductions.privacy_tokens.setups import Run
from reproductions.privacy_tokens.table1 import Options, gap, measured

TOKEN = "transformer"
RUNS: tuple[Run, ...] = ((TOKEN, "once", "all"), (TOKEN, "once", "sub_epoch"))


def run(name: str, options: Options, results: Rows) -> None:
    setup = options.setup(name)
    data = options.images(setup)
    for batch in setup.batch_sizes:
        unit = f"batch {batch}"
        if results.has(unit):
            continue
        schedule = replace(setup.schedule, batch=batch)
        every = measured(setup, options, data, RUNS, seed=options.seed, schedule=schedule, controls=False)
        rows = [
            {
                "kind": "batch_size" if found.shuffle == "all" else "batch_size, within sub-epochs",
                "model": name,
                "token": TOKEN,
                "batch": batch,
                "shuffle": found.shuffle,
                "sub_epoch": at.sub_epoch,
                "accuracy": round(at.accuracy, 4),
                "gap": gap(at.paper),
                "held_out": gap(at.controls.held_out),
                "collected": gap(at.collected),
            }
            for found in every
            for at in found.checkpoints
        ]
        results.add(unit, *rows)
