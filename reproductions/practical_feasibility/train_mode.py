"""Table 1 and Fig. 2, in part: ResNet18 in train mode, before and after training, batches of four images and of one.

    python -m reproductions.practical_feasibility.train_mode --data FOLDER --out FOLDER

The same images, searches and settings as in ``control.py``; only the mode and the batch differ. A candidate is replayed in train
mode too, so it brings its own batch statistics. No statistics of the true batch are used.
"""

from __future__ import annotations

from reproductions.common import runner
from reproductions.common.runner import Options, Part, Rows, run_part
from reproductions.practical_feasibility import control
from reproductions.practical_feasibility.control import CASES, RESULTS, Setting

SETTINGS = {"untrained": Setting(tv=3e-3), "trained": Setting(power=0.5, tv=1e-1)}
"""The winners of the control's trials."""
STEPS, RESTARTS, BATCHES = 2500, 2, (4, 1)


def run(options: Options, results: Rows) -> None:
    images = control.targets(options, 0, 4 if options.quick else control.IMAGES)
    results.keep("truth", images[0])
    for batch in BATCHES:
        for case in CASES:
            unit = f"{case} batch {batch}"
            if results.has(unit):
                continue
            victim = control.victim_of(case, options, results, mode="train")
            setting, wanted = SETTINGS[case.split()[1]], 4 if options.quick else STEPS
            steps = min(wanted, control.affordable(options, victim, images, setting, restarts=RESTARTS, batch=batch))
            if steps < wanted / 2:
                results.wait(unit)
                continue
            row, kept = control.measure(
                victim, images, setting, steps=steps, restarts=RESTARTS, seed=options.seed, batch=batch
            )
            results.add(unit, {"case": case, **row}, pictures={unit: kept})


if __name__ == "__main__":
    run_part(Part("train_mode", run), Options.of(runner.parser(__doc__, out=RESULTS).parse_args()))
