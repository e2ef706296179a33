"""Figures 16-19: the published number for other batch sizes of training; the middle one, 20, is that of Table 1."""

from __future__ import annotations

from dataclasses import replace

from reproductions.privacy_tokens.results_file import Results
from reproductions.privacy_tokens.table1 import Options, gap, measured

TOKEN = "transformer"


def run(name: str, options: Options, results: Results) -> None:
    setup = options.setup(name)
    data = options.images(setup)
    for batch in setup.batch_sizes:
        unit = f"batch {batch}"
        if results.has(unit):
            continue
        schedule = replace(setup.schedule, batch=batch)
        found = measured(setup, options, data, TOKEN, "once", schedule=schedule, controls=False)
        shared = {"kind": "batch_size", "model": name, "token": TOKEN, "batch": batch, "seed": options.seed}
        results.add(
            unit,
            *(
                shared
                | {
                    "sub_epoch": at.sub_epoch,
                    "accuracy": round(at.accuracy, 4),
                    "gap": gap(at.paper),
                    "held_out": gap(at.controls.held_out),
                    "collected": gap(at.collected),
                }
                for at in found.checkpoints
            ),
        )
    results.finish()
