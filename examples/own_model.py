"""Audit a model of your own: what could a server read out of one shared gradient?

    python examples/own_model.py [--quick] [--out FOLDER]

Shows the whole way from a torch module to a verdict: put your own network into ``my_model`` and run it again. Look at the
verdict, and at ``report.html``, where original, reconstruction and null run (the same attack without the gradient) are
side by side. Quick: one image. Full: also a batch of four, and noise as a defense. About 18 s, quick 5 to 7 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch import nn

from leakgauge import Pixels, Victim, run_audit
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import result


def my_model() -> Victim:
    """Put your own here: any module that maps images to class scores, and the images it takes, (image - mean) / std."""
    model = nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(24, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 8 * 8, 10),
    )
    return Victim(model, Pixels((3, 32, 32), mean=(0.5,), std=(0.25,)), name="my_model")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one case with fewer steps")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-own_model"), help="run folder")
    options = parser.parse_args()

    run = run_audit(
        my_model(),
        "photographs",  # embedded; or (images, labels), a Dataset, a DataLoader, or a folder of your images
        questions=["updates"],
        batch_size=1 if options.quick else None,  # None: 1 and 4
        defenses=[] if options.quick else ["gaussian_noise:relative=1"],
        attack="inverting_gradients"
        if options.quick
        else "strongest",  # one attack is quicker than a race of all that apply
        options={"steps": 300, "tv": 0.01} if options.quick else {"steps": 2000},
        changes=False,  # of the set-up, one at a time: which of them flips the verdict? It takes longer.
        out=options.out,
        overwrite=True,  # an earlier try
    )  # shares, attacks, runs the null run, scores, judges
    for record in run.records:
        if record.scores and record.null:
            attack, null = record.scores.mean("psnr"), record.null.mean("psnr")
            print(
                f"{record.case.setting()}: PSNR {attack:.1f} dB, without the gradient {null:.1f} dB; {result(record)}"
            )
    print(f"report: {run.report()}")

    single, *others = run.records
    psnr, null = (scores.mean("psnr") if scores else float("nan") for scores in (single.scores, single.null))
    outcome = "was reconstructed" if single.outcome is Outcome.FEASIBLE else "was not reconstructed within this budget"
    print(
        f"Finding: a private photograph {outcome} from its gradient ({psnr:.1f} dB, {null:.1f} dB without the gradient)"
        + "".join(f"; {record.case.setting()}: {result(record)}" for record in others)
        + "."
    )


if __name__ == "__main__":
    main()
