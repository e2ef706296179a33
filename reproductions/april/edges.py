"""Settings beyond those of Table 1: there the best was often the outermost, so the next ones are tried in the same way.

    python -m reproductions.april.edges --data FOLDER

1. ``setting``: images, model, starts and steps are those with which ``table1.py`` chose its settings: images that are not among the
   table's, and fewer steps.
2. ``whole``: where a setting beyond is better, the first images of the table with it and with all steps (MNIST and CIFAR-10).

A data set whose file is not in FOLDER waits. MNIST and CIFAR-10 take the better part of an hour on one core; ImageNet and the trained
model belong on a GPU, and one run adds to another.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leakgauge.inversion import CosineDecay
from reproductions.april import study, table1
from reproductions.april.study import Options
from reproductions.april.table1 import SET_UP, SETTINGS, Setting, attack_of, error_of
from reproductions.common.runner import Part, Pictures, Row, Rows, read

BEYOND: dict[str, list[Setting]] = {"ig": [Setting(0.1, tv=tv) for tv in (1.0, 1e-4, 0.0)]} | {
    name: [Setting(0.3), Setting(1.0, CosineDecay())] for name in ("dlg", "tag", "april")
}
SETS = {
    "imagenet": ("imagenet.npz",),
    "cifar10_trained": ("cifar10_train_a.zip", "data_batch_1.bin"),
    "cifar10": ("cifar10_test.zip", "test_batch.bin"),
    "mnist": ("mnist.npz",),
}
"""The data sets, the slowest first, and the file, in either form, without which one waits."""


WHOLE, IMAGES = ("mnist", "cifar10"), 4


def told(setting: Setting, attack: str) -> str:
    if attack == "ig":
        return f"total variation {setting.tv:g}"
    return f"rate {setting.lr:g}{', falling to zero' if isinstance(setting.schedule, CosineDecay) else ''}"


def attack(options: Options, results: Rows, data_set: str) -> None:
    """Mean error of every setting beyond the table's."""
    kind = table1.DATA_SETS[data_set]
    missing = [name for name in BEYOND if not results.has(part="setting", data_set=data_set, attack=name)]
    if not missing:
        return
    images, own = table1.split(kind, options)
    victim, _ = table1.attacked(kind, images, options)
    for name in missing:
        if not options.allows(SET_UP):
            results.wait(f"{data_set} {name}")
            continue
        errors = [error_of(name, one, kind, victim, own, options) for one in BEYOND[name]]
        results.add(
            f"settings of {data_set} {name}",
            part="setting",
            data_set=data_set,
            attack=name,
            of=images.name,
            images=len(own.x),
            steps=max(1, options.steps(kind.steps) // kind.shorter),
            settings=[told(one, name) for one in BEYOND[name]],
            each_mse=study.rounded(errors),
        )


def whole(options: Options, results: Rows, data_set: str) -> None:
    """The first images of the table with all steps, by the attacks that a setting beyond the table's suits better."""
    kind, before = table1.DATA_SETS[data_set], inner()
    images, _ = table1.split(kind, options)
    images = images.first(options.count(IMAGES))
    victim, _ = table1.attacked(kind, images, options)
    for row in [r for r in results.rows if (r["part"], r["data_set"]) == ("setting", data_set)]:
        name = row["attack"]
        best = min(range(len(BEYOND[name])), key=row["each_mse"].__getitem__)
        better = row["each_mse"][best] < min(before[data_set, name].values())
        if results.has(part="whole", data_set=data_set, attack=name) or not (better or options.quick):
            continue
        if not options.allows(SET_UP):
            results.wait(f"{data_set} {name}, all steps")
            continue
        matching = replace(attack_of(name, options.steps(kind.steps), BEYOND[name][best]), precision=kind.precision)
        found = matching.many(victim, study.observed(victim, images), seed=options.seed)
        results.add(
            f"{data_set} {name}, all steps",
            part="whole",
            data_set=data_set,
            attack=name,
            of=images.name,
            setting=row["settings"][best],
            steps=options.steps(kind.steps),
            **study.measured(found, images),
        )


def run(options: Options, results: Rows) -> None:
    for data_set in ("cifar10", "mnist") if options.quick else SETS:
        if options.data is None or any((options.data / name).is_file() for name in SETS[data_set]):
            attack(options, results, data_set)
            if data_set in WHOLE:
                whole(options, results, data_set)
        else:
            results.wait(data_set)


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    """The table says it all."""


def inner() -> dict[tuple[str, str], dict[str, float]]:
    """The error of each setting that ``table1.py`` tried, by data set and attack."""
    names = {attack: {repr(one): told(one, attack) for one in settings} for attack, settings in SETTINGS.items()}
    return {
        cell: {names[cell[1]][one["setting"]]: one["mse"] for one in row["tried"]} for cell, row in of_table().items()
    }


def of_table() -> dict[tuple[str, str], Row]:
    """The rows of Table 1 by data set and attack."""
    rows = read(study.RESULTS / "table1.jsonl")
    return {(row["data_set"], row["attack"]): row for row in rows}


def table(rows: list[Row]) -> str:
    before, cells = inner(), of_table()
    lines = [
        "| data | attack | images, steps | MSE with the table's settings | beyond them | best |",
        "|---|" + "---|" * 5,
    ]
    for r in (r for r in rows if r["part"] == "setting"):
        within, beyond = before[r["data_set"], r["attack"]], dict(zip(r["settings"], r["each_mse"], strict=True))
        every = within | beyond
        best = min(every, key=every.__getitem__)
        listed = ["; ".join(f"{name}: {error:.2g}" for name, error in part.items()) for part in (within, beyond)]
        lines.append(
            f"| {called(r)} | {table1.NAMES[r['attack']]} | {r['images']}, {r['steps']} | {' | '.join(listed)} "
            f"| {best}{' (beyond)' if best in beyond else ''} |"
        )
    lines += [
        "",
        "| data | attack | setting | images, steps | MSE in Table 1, these images | MSE | SSIM |",
        "|---|" + "---|" * 6,
    ]
    for r in (r for r in rows if r["part"] == "whole"):
        before_that = in_table(cells[r["data_set"], r["attack"]], r["images"])
        lines.append(
            f"| {called(r)} | {table1.NAMES[r['attack']]} | {r['setting']} | {r['images']}, {r['steps']} | {before_that:.2g} "
            f"| {r['mse']:.2g} | {r['ssim']:.3f} |"
        )
    return "\n".join(lines)


def in_table(row: Row, count: int) -> float:
    """Mean error of the first images in Table 1."""
    return float(table1.chosen(row, "each_mse", list(range(count))).mean())


def called(row: Row) -> str:
    return row["of"] + (", trained" if "trained" in row["data_set"] else "")


if __name__ == "__main__":
    study.main(Part("edges", run, draw), __doc__)
