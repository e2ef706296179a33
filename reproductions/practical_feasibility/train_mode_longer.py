"""Table 1 and Fig. 2 again: trained ResNet18 in train mode with the searches that solved the positive control after training.

    python -m reproductions.practical_feasibility.train_mode_longer [--form pre] --data FOLDER --out FOLDER

The same images as in ``train_mode.py``, in batches of four and of one. A candidate brings its own batch statistics; none of the true
batch are used. Settings are tried on four other images, and the best gets half of the time that is left, then all of it.
"""

from __future__ import annotations

from dataclasses import replace

from reproductions.common.runner import Options, Rows
from reproductions.practical_feasibility import control
from reproductions.practical_feasibility.control_longer import FORMS, NETWORK, PIXELS, Case, attack, main

SETTINGS = (
    replace(PIXELS, tv=1e-2, falling=(3e-1, 1e-1, 3e-2)),
    replace(NETWORK, tv=1e-2),
    replace(PIXELS, tv=1e-1, falling=(3e-1,)),
)
TRIAL, LEAST = 1200, 2500


def run(options: Options, results: Rows, *, forms: tuple[str, ...] = FORMS) -> None:
    images = control.targets(options, 0, 4 if options.quick else control.IMAGES)
    others = control.targets(options, 1, 4 if options.quick else control.TUNED_ON)
    results.keep("truth", images[0])
    for form in forms:
        for batch, share in ((4, 0.55), (1, 1.0)):
            case = Case(form, "train", batch, SETTINGS, TRIAL, LEAST)
            attack(case, images, others, options.for_share(share), results)
    missing = [
        f"{form} {batch}"
        for form in FORMS
        for batch in (4, 1)
        if not results.has(f"final {Case(form, 'train', batch).name}")
    ]
    if missing:
        results.wait(", ".join(missing))


if __name__ == "__main__":
    main("train_mode_longer", __doc__, run)
