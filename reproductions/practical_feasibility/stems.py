"""Section 4.5.3 for Swin-T: both stems trained for equally many epochs, then attacked by the same search.

    python -m reproductions.practical_feasibility.stems [--stem adapted] --data FOLDER --out FOLDER

Earlier rows compare 45 epochs with 5. Settings are the best of ``starts.py``, and the same along the gradient at the output, which solved
the positive control after training. They are chosen for each stem on two images of its own from pure noise; then eight other images are
attacked, from pure noise and from half noise.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from leakgauge.core import Pixels, Victim
from reproductions.common import gates, runner
from reproductions.common.runner import Options, Part, Row, Rows, run_part, save_weights
from reproductions.practical_feasibility import control
from reproductions.practical_feasibility.control import CLASSES, IMAGES, RESULTS, Setting
from reproductions.practical_feasibility.networks import Network, weights_file, weights_folder
from reproductions.practical_feasibility.starts import FINAL, TRIAL, searched
from reproductions.practical_feasibility.training import SWIN, trained

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
            attack(stem, victim_of(stem, options, results), images, others, options, results)
    if any(not results.has(f"final {stem}") for stem in STEMS):
        results.wait("the other stem")


def victim_of(stem: str, options: Options, results: Rows) -> Victim:
    """Trained here, or by an earlier call that has left the weights."""
    model, space, changes = STEMS[stem].made(classes=CLASSES, seed=options.seed, quick=options.quick)
    assert isinstance(space, Pixels)
    if not results.load(stem, model):
        train, test = (control.cifar(options, part) for part in ("train", "test"))
        recipe = replace(SWIN[-1], batch=32) if options.quick else SWIN[-1]
        done = trained(
            model, space, train, test, recipe=recipe, seconds=200.0, device=options.device,
            epochs=1 if options.quick else EPOCHS, seed=options.seed,
        )  # fmt: skip
        balanced, error = gates.balanced_accuracy(model.eval(), (space.encode(test[0]), test[1]), CLASSES)
        checks = [
            gates.above_chance(balanced, error, CLASSES),
            gates.all_classes(test[1], CLASSES),
            gates.shuffled(train[1]),
        ]
        results.save(stem, model, half=True)
        save_weights(
            weights_file(weights_folder(options), STEMS[stem]), model, half=True
        )  # for the parts that attack this network
        results.load(stem, model)
        row: Row = {
            "stem": stem,
            "changes": changes,
            "accuracy": done.accuracy,
            "epochs": done.epochs,
            "images": done.images,
        }
        if not results.has(unit := f"trained {stem}"):
            results.add(unit, row | {"seconds": round(done.seconds, 1), "gates": [check.row() for check in checks]})
    return Victim(model.eval().to(options.device), space, mode="train", name=STEMS[stem].key)


def attack(
    stem: str,
    victim: Victim,
    images: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor],
    options: Options,
    results: Rows,
) -> None:
    for setting in SETTINGS[:2] if options.quick else SETTINGS:
        unit = f"trial {stem} {setting.key}"
        if not results.has(unit):
            row, _ = searched(victim, others, setting, (1.0,), steps=3 if options.quick else TRIAL, seed=options.seed)
            results.add(unit, {"kind": "trial", "stem": stem, **row})
    tried = {s: results.done[u]["best"] for s in SETTINGS if results.has(u := f"trial {stem} {s.key}")}
    chosen = max(tried, key=lambda one: sum(map(sum, tried[one])))

    def timed(steps: int) -> float:
        return searched(victim, images, chosen, SHARES, steps=steps, seed=options.seed)[0]["seconds"]

    steps = 4 if options.quick else min(FINAL, control.steps_within(options, timed))
    if steps < FINAL / 2 and not options.quick:
        results.wait(f"final {stem}")
        return
    row, shown = searched(victim, images, chosen, SHARES, steps=steps, seed=options.seed)
    pictures = {f"{stem} {kind}": one for kind, one in shown.items()}
    results.add(f"final {stem}", {"kind": "final", "stem": stem, **row}, pictures=pictures)


def main() -> None:
    parser = runner.parser(__doc__, out=RESULTS)
    parser.add_argument("--stem", choices=list(STEMS), help="only this one")
    given = parser.parse_args()
    stems = (given.stem,) if given.stem else tuple(STEMS)
    part = Part[Options]("stems", lambda options, results: run(options, results, stems=stems))
    run_part(part, Options.of(given))


if __name__ == "__main__":
    main()
