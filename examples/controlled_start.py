"""How much of an image must be given before the gradient finds the rest, for two embedded models.

    python examples/controlled_start.py [--quick] [--out FOLDER]

A diagnostic: the attack begins at the private image itself, with a share of its pixels replaced by noise. Look at the attack's row
against the null run's (the same smoothing without the gradient): only what lies above it was read from the gradient. A model
that is not completed even from a half is out of this attack's reach. Full: three starts, 200 steps.
Quick: one start, 60 steps. About 19 s, quick 7 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from leakgauge.audit import Case, embedded, records, run_all
from leakgauge.report import page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps, and one start")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-controlled_start"), help="run folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / records.FILE).unlink(missing_ok=True)  # of an earlier try

    effort = {"steps": 60 if options.quick else 200, "statistics": 0.0}
    shares = (0.5,) if options.quick else (0.0, 0.5, 1.0)
    cases = [
        Case(model=model, attack="feasibility", options=effort, reveal=("size", "labels", f"noisy_copy:{p}"))
        for model in ("cnn", "vit")
        for p in shares
    ]
    found = run_all(cases, load=embedded, folder=options.out)
    for r in found:
        start, null, attack = (f"{one.mean('ssim'):.2f}" for one in (r.start, r.null, r.scores) if one)
        print(
            f"{r.case.model}, {r.case.reveal[-1]}: SSIM of the start {start}, of the null run {null}, of the attack {attack}"
        )
    print(f"report: {page.write(options.out)}")

    half = {r.case.model: r for r in found if "noisy_copy:0.5" in r.case.reveal}
    said = (
        f"the {name} goes from SSIM {r.start.mean('ssim'):.2f} to {r.scores.mean('ssim'):.2f} "
        f"({r.null.mean('ssim'):.2f} without the gradient)"
        for name, r in half.items()
        if r.start and r.scores and r.null
    )
    print(f"Finding: with half of the pixels given {', '.join(said)}.")


if __name__ == "__main__":
    main()
