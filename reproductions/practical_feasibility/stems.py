"""Section 4.5.3 for Swin-T: both stems trained for equally many epochs, then attacked by the same search.

    python -m reproductions.practical_feasibility.stems [--stem adapted] --data FOLDER --out FOLDER

Earlier rows compare 45 epochs with 5. Settings are the best of ``starts.py``, and the same along the gradient at the output, which solved
the positive control after training. They are chosen for each stem on two images of its own from pure noise; then eight other images are
attacked, from pure noise and from half noise.
"""

from __future__ import annotations

from dataclasses import replace

from leakgauge.core import Pixels, Victim
from reproductions.common import runner
from reproductions.common.runner import Options, Part, Row, Rows, run_part, save_weights
from reproductions.practical_feasibility import control
from reproductions.practical_feasibility.control import CLASSES, IMAGES, RESULTS, Setting
from reproductions.practical_feasibility.networks import Network, weights_file, weights_folder
from reproductions.practical_feasibility.starts import FINAL, trials_and_final
from reproductions.practical_feasibility.training import SWIN

STEMS = {"adapted": Network("swin_t"), "imagenet": Network("swin_t", adapted=False)}
EPOCHS, SHARES = 24, (0.5, 1.0)
PLAIN = Setting(tv=1e-3, lr=0.1)
SETTINGS = (replace(PLAIN, along=True), replace(PLAIN, tv=1e-2, along=True), PLAIN)


def run(options: Options, results: Rows, *, stems: tuple[str, ...] = tuple(STEMS)) -> None:
    images = control.targets(options, 0, 2 if options.quick else IMAGES)
    others = control.targets(options, 1, 1 if options.quick else 2)
    results.keep("truth", images[0])
    for stem in stems:
        if not results.has(f"final {stem}"):
            trials_and_final(
                stem, victim_of(stem, options, results), images, others, SETTINGS, shares=SHARES, trial_shares=(1.0,),
                least=FINAL / 2, facts={"stem": stem}, options=options, results=results,
            )  # fmt: skip
    if any(not results.has(f"final {stem}") for stem in STEMS):
        results.wait("the other stem")


def victim_of(stem: str, options: Options, results: Rows) -> Victim:
    """Trained here, or by an earlier call that has left the weights."""
    model, space, changes = STEMS[stem].made(classes=CLASSES, seed=options.seed, quick=options.quick)
    assert isinstance(space, Pixels)
    epochs = 1 if options.quick else EPOCHS
    facts: Row = {"stem": stem, "changes": changes}
    if control.load_or_train(
        stem, model, space, options, results, recipe=SWIN[-1], seconds=200.0, epochs=epochs, facts=facts
    ):  # for the parts that attack this network
        save_weights(weights_file(weights_folder(options), STEMS[stem]), model, half=True)
    return Victim(model.eval().to(options.device), space, mode="train", name=STEMS[stem].key)


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("--stem", choices=list(STEMS), help="only this one")
    given = parser.parse_args()
    stems = (given.stem,) if given.stem else tuple(STEMS)
    part = Part[Options]("stems", lambda options, results: run(options, results, stems=stems))
    run_part(part, Options.of(given))


if __name__ == "__main__":
    main()
