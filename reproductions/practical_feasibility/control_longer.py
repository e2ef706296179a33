"""The positive control after training again, with other total variation and a search several times as long: it missed the bar by 2 dB.

    python -m reproductions.practical_feasibility.control_longer [--form pre] --data FOLDER --out FOLDER

The same networks and images as in ``control.py``, where more steps and more total variation each brought decibels (14.5 dB after
1,000 steps, 18 after 5,000; 12.4, 13.4, 14.0 dB with 0.01, 0.03, 0.1) and restarts did not. But at a weight of 0.1 the true images
pay 0.02 to 0.07 for their own variation, about as much as 1 − cos at the end (0.03 to 0.06), and the most detailed ones were found
worst. So the weight falls from stage to stage. A trained network is nearly certain of these images, so p − y is rounded and the
replay of a loss cannot fit; the replay follows the gradient at the output instead, which the head's bias shows (``along``).
The image may also be painted by an untrained network, whose weights the search then moves: that needs no data, and such a network
paints noise last. Settings are tried on the other four images; the best gets all the time that is left, with two restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from leakgauge.core import Mode
from reproductions.common import gates, runner
from reproductions.common.runner import Options, Part, Rows, run_part
from reproductions.practical_feasibility import control
from reproductions.practical_feasibility.control import RESULTS, Setting

PIXELS = Setting(power=0.5, tv=1e-1, along=True)
NETWORK = Setting(power=0.5, tv=3e-2, lr=3e-3, signed=False, decay="cosine", along=True, network=64)
SETTINGS = (
    PIXELS,
    NETWORK,
    replace(PIXELS, tv=1e-2, falling=(3e-1, 1e-1, 3e-2)),
    replace(NETWORK, tv=1e-2),
    replace(NETWORK, network=128, lr=1e-3, tv=1e-2),
    replace(NETWORK, pixels=0.25),
)
TRIAL, STEPS, LEAST, RESTARTS = 2000, 24_000, 5_000, 2
"""Steps of a trial and of the search that counts: at most as many as Geiping et al. take, at least as many as before; and its restarts."""
FORMS = ("post", "pre")


def run(options: Options, results: Rows, *, forms: tuple[str, ...] = FORMS) -> None:
    images = control.targets(options, 0, 2 if options.quick else control.IMAGES)
    others = control.targets(options, 1, 1 if options.quick else control.TUNED_ON)
    results.keep("truth", images[0])
    for form in forms:
        attack(Case(form), images, others, options, results)
    if any(not results.has(f"final {form}") for form in FORMS):
        results.wait("the other form")


@dataclass(frozen=True)
class Case:
    """A trained network in one mode, ``batch`` images to a gradient; its settings are tried for ``trial`` steps each, and it gets
    no fewer than ``least``."""

    form: str
    mode: Mode = "eval"
    batch: int = 1
    settings: tuple[Setting, ...] = SETTINGS
    trial: int = TRIAL
    least: int = LEAST

    @property
    def name(self) -> str:
        return self.form + ("" if self.mode == "eval" else f", {self.mode} mode, batch {self.batch}")


def attack(case: Case, images: control.Images, others: control.Images, options: Options, results: Rows) -> None:
    """Tries the settings on other images, then gives the best one all the time that is left."""
    if results.has(f"final {case.name}"):
        return
    victim = control.victim_of(f"{case.form} trained", options, results, mode=case.mode)
    about = {"case": f"{case.form} trained"}
    for setting in case.settings:
        unit = f"trial {case.name} {setting.key}"
        if not results.has(unit):
            steps = 4 if options.quick else case.trial
            row, _ = control.measure(
                victim, others, setting, steps=steps, restarts=1, seed=options.seed, batch=case.batch
            )
            results.add(unit, {"kind": "trial", **about, **row})
    tried = {setting: results.done[f"trial {case.name} {setting.key}"]["mean_psnr"] for setting in case.settings}
    chosen = max(tried, key=tried.__getitem__)
    wanted, least = (6, 6) if options.quick else (STEPS, case.least)
    afforded = control.affordable(options, victim, images, chosen, restarts=RESTARTS, batch=case.batch)
    steps = min(wanted, afforded)
    if steps < least:
        results.wait(f"final {case.name}")
        return
    row, kept = control.measure(
        victim, images, chosen, steps=steps, restarts=RESTARTS, seed=options.seed, batch=case.batch
    )
    checks = [gates.control(row["psnr"])] if case.mode == "eval" else []
    made = {"kind": "final", **about, **row, "gates": [check.row() for check in checks]}
    results.add(f"final {case.name}", made, pictures={f"final {case.name}": kept})


def main(name: str, about: str | None, run: Callable[..., None]) -> None:
    """``run`` of one form, or of all of them, as a part of this ``name``."""
    parser = runner.parser(about, out=RESULTS)
    parser.add_argument("--form", choices=FORMS, help="only this one")
    given = parser.parse_args()
    forms = (given.form,) if given.form else FORMS
    run_part(Part[Options](name, lambda options, results: run(options, results, forms=forms)), Options.of(given))


if __name__ == "__main__":
    main("control_longer", __doc__, run)
