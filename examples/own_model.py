"""Audit a model of your own: what could a server read out of one shared gradient?

    python examples/own_model.py [--quick] [--out FOLDER]

Shows the whole way from a torch module to a verdict: put your own network into ``my_model`` and run it again. Look at the
verdict, and at ``report.html``, where original, reconstruction and null run (the same attack without the gradient) stand
side by side. Quick: one image. Full: also a batch of four, and noise as a defense. About 18 s, quick 5 to 7 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch import nn

from leakgauge import Pixels
from leakgauge.audit import Case, records, run_all
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import result
from leakgauge.integrations.setups import find
from leakgauge.report import page


def my_model() -> tuple[nn.Module, Pixels]:
    """Put your own here: any module that maps images to class scores, and the images it takes, (image - mean) / std."""
    model = nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(24, 24, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 8 * 8, 10),
    )
    return model, Pixels((3, 32, 32), mean=(0.5,), std=(0.25,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one case with fewer steps")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-own_model"), help="run folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / records.FILE).unlink(missing_ok=True)  # of an earlier try

    def case(batch_size: int = 1, defenses: tuple[str, ...] = ()) -> Case:
        return Case(
            model=f"{__file__}:my_model",  # as on the command line: leakgauge audit my_file.py:my_model
            data="photographs",  # or a folder of your images, values are scaled to [0, 1]
            batch_size=batch_size,
            defenses=defenses,
            options={"steps": 300, "tv": 0.01} if options.quick else {"steps": 1000, "tv": 0.001},
            name=f"batch of {batch_size}" + "".join(f", {defense}" for defense in defenses),
        )

    cases = [case()] if options.quick else [case(), case(batch_size=4), case(defenses=("gaussian_noise:relative=1",))]
    found = run_all(cases, load=find, folder=options.out)  # shares, attacks, runs the null run, scores, judges
    for record in found:
        if record.scores and record.null:
            attack, null = record.scores.mean("psnr"), record.null.mean("psnr")
            print(f"{record.case.name}: PSNR {attack:.1f} dB, without the gradient {null:.1f} dB; {result(record)}")
    print(f"report: {page.write(options.out)}")

    single, *others = found
    psnr, null = (scores.mean("psnr") if scores else float("nan") for scores in (single.scores, single.null))
    outcome = "was reconstructed" if single.outcome is Outcome.FEASIBLE else "was not reconstructed within this budget"
    print(
        f"Finding: a private photograph {outcome} from its gradient ({psnr:.1f} dB, {null:.1f} dB without the gradient)"
        + "".join(f"; {record.case.name}: {result(record)}" for record in others)
        + "."
    )


if __name__ == "__main__":
    main()
