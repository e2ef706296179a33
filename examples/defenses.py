"""Compare defenses on the embedded network: how much of the image is left in what is sent?

    python examples/defenses.py [--quick] [--out FOLDER]

The same gradient is sent bare and behind each defense, and the same attack reads it. Look at what does little: coarse numbers, a
tenth of the entries, even a first layer that is kept back. What an attack cannot read today may still be there: a low score is
no proof. Pictures and verdicts are in ``report.html``. Full: all defenses, 500 steps. Quick: three, 150 steps. About 28 s,
quick 9 s, on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from leakgauge.audit import Case, embedded, records, run_all
from leakgauge.audit.verdict import Outcome
from leakgauge.audit.wording import result
from leakgauge.report import page

DEFENSES = (
    (),
    ("withhold:first_layer",),
    ("gaussian_noise:relative=10",),
    ("prune:0.9",),
    ("quantize:4",),
    ("gaussian_noise:relative=1",),
    ("clip:1.0", "gaussian_noise:std=0.01"),
)
"""Each is applied from left to right; ``leakgauge list`` shows what there is."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first three, with fewer steps")
    parser.add_argument("--out", type=Path, default=Path("leakgauge-runs/example-defenses"), help="run folder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / records.FILE).unlink(missing_ok=True)  # of an earlier try

    settings = {"steps": 200 if options.quick else 500}
    cases = [
        Case(model="cnn", defenses=defenses, options=settings, name=" + ".join(defenses) or "nothing")
        for defenses in (DEFENSES[:3] if options.quick else DEFENSES)
    ]
    found = run_all(cases, load=embedded, folder=options.out)
    for record in found:  # a refusal would be a result of its own, not a low score
        score = (
            f"PSNR {record.scores.mean('psnr'):.1f} dB; {record.outcome.label}"
            if record.scores and record.outcome
            else record.reason
        )
        print(f"{record.case.name}: {score}")
    print(f"report: {page.write(options.out)}")

    behind = found[1:]
    helped = [f"{r.case.name} ({result(r)})" for r in behind if r.outcome is not Outcome.FEASIBLE]
    print(
        f"Finding: behind {len(behind) - len(helped)} of {len(behind)} defenses the image is still reconstructed; "
        f"what kept this attack from it: {', '.join(helped) or 'nothing'}."
    )


if __name__ == "__main__":
    main()
