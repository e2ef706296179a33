"""Table 1: four attacks by optimisation on architecture B, 500 images each of MNIST and CIFAR-10, 30 of ImageNet.

    python -m reproductions.april.table1 --data FOLDER [--within SECONDS]

The paper's budgets: Adam, 800 steps for MNIST, 1500 for CIFAR-10, 5000 for ImageNet. Images are attacked in pieces, each one batch
(`Matching.many`), one restart each; every image starts from the same seed, so the result does not depend on the pieces. The paper gives no
learning rates; each attack gets the best of a few settings, tried with fewer steps on images that are not among those of the table. A
row tells of the images that are done, and a later run resumes with the others. The table compares the attacks of a data set on
the images that all of them have. ImageNet is read from ``imagenet.npz`` in FOLDER: x uint8, (N, 224, 224, 3) or (N, 3, 224, 224), and y.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks import inverting_gradients
from leakgauge.core import Reconstruction, Victim
from leakgauge.engine import TF32, Exact, Fused, Precision
from leakgauge.inversion import Adam, AdamW, CosineDecay, Descent, Matching, Steady
from leakgauge.inversion.solvers import Schedule
from leakgauge.measures.image import downscale, mse, ssim
from reproductions.april import study
from reproductions.april.study import Images, Options
from reproductions.common.drawing import Line, Panel, grid, svg
from reproductions.common.runner import Part, Pictures, Row, Rows

PAPER = {
    "mnist": {"dlg": "1.291e-04, 0.997", "ig": "0.043, 0.833", "tag": "3.438e-05, 0.998", "april": "4.796e-05, 0.998"},
    "cifar10": {"dlg": "0.017, 0.959", "ig": "0.125, 0.635", "tag": "0.006, 0.965", "april": "0.002, 0.991"},
    "imagenet": {"dlg": "1.328, 0.056", "ig": "1.671, 0.029", "tag": "1.180, 0.062", "april": "1.092, 0.099"},
}
"""Mean MSE and SSIM of the paper's Table 1. Its MSE on ImageNet exceeds 1, so it is not on images in [0, 1]."""
VARIANCE = {"mnist": 0.3081**2, "cifar10": 0.2503**2, "imagenet": 0.226**2}
"""Of the pixels, as models usually divide by it; root mean square over the channels. If the paper's MSE is on images that were
standardised like this, which fits its Inverting Gradients within 12 %, ours have to be divided by it to compare."""
LABELS = {"dlg": "optimised", "ig": "read", "tag": "optimised", "april": "read"}
NAMES = {"dlg": "DLG", "ig": "Inverting Gradients", "tag": "TAG", "april": "APRIL"}
OF = {"mnist": "MNIST", "cifar10": "CIFAR-10", "imagenet": "ImageNet"}
CELLS = [(data_set, attack) for data_set, attacks in PAPER.items() for attack in attacks]


SHOWN, DRAWN = 10, 8
SET_UP = 20.0
"""Seconds that must be left for a piece to begin."""


@dataclass(frozen=True)
class DataSet:
    """Where a row's images come from, how many, for how many steps, against which model.

    ``piece`` images are attacked at once. Settings are tried on ``tried`` other images with a ``shorter``th of the steps.
    """

    images: Callable[[Options, int], Images]
    count: int
    steps: int
    model: study.Make
    precision: Precision
    epochs: int = 0
    piece: int = 250
    tried: int = 8
    shorter: int = 4


@dataclass(frozen=True)
class Setting:
    """What is chosen for an attack: the learning rate and how it falls; the weight of the total variation (IG alone)."""

    lr: float
    schedule: Schedule = field(default_factory=Steady)
    tv: float = 0.0


SETTINGS: dict[str, list[Setting]] = {"ig": [Setting(0.1, tv=tv) for tv in (0.1, 0.01, 0.001)]} | {
    name: [Setting(0.1), *(Setting(lr, CosineDecay()) for lr in (0.03, 0.1, 0.3))] for name in ("dlg", "tag", "april")
}


def photographs_224(options: Options, count: int) -> Images:
    """ImageNet images from ``imagenet.npz``, channels first or last; without a data folder the embedded photographs."""
    if options.data is None:
        return study.large(options, count)
    with np.load(options.data / "imagenet.npz") as archive:
        x, y = torch.from_numpy(archive["x"][:count]), torch.from_numpy(archive["y"][:count]).long()
    if x.shape[1] != 3:
        x = x.permute(0, 3, 1, 2)
    x = x.float() / 255
    if options.quick and x.shape[-1] > 32:
        x = F.adaptive_avg_pool2d(x, (32, 32))
    return Images("ImageNet", x, y)


DATA_SETS = {
    "mnist": DataSet(study.digits, 500, 800, study.small_model, Exact()),
    "cifar10": DataSet(study.objects, 500, 1500, study.small_model, Exact()),
    "cifar10_trained": DataSet(study.objects, 100, 1500, study.small_model, Exact(), epochs=10),
    "imagenet": DataSet(photographs_224, 30, 5000, study.base_model, Fused(TF32()), piece=24, tried=2, shorter=10),
}


def trained(model: nn.Module, options: Options, *, epochs: int) -> float:
    """Trains the model in place on CIFAR-10 (AdamW, one cycle, batches of 500) and returns its test accuracy."""
    data = study.objects(options, 2_000 if options.quick else 50_000, train=True)
    test = study.objects(options, 100 if options.quick else 10_000)
    x, y = data.x.to(options.device), data.y.to(options.device)
    model.to(options.device).train()
    size = min(500, len(x))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, epochs * (len(x) // size))
    rng = torch.Generator(device=options.device).manual_seed(options.seed)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=rng, device=options.device)
        for rows in order[: len(x) // size * size].split(size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        guesses = torch.cat([model(part.to(options.device)).argmax(1).cpu() for part in test.x.split(500)])
    return float((guesses == test.y).double().mean())


def images_of(row: Row) -> list[int]:
    """Which images a row tells of; one of an early run does not name them, and has all."""
    return row.get("which") or list(range(row["images"]))


def common(rows: list[Row]) -> list[int]:
    """The images that all these rows tell of."""
    return sorted(set.intersection(*(set(images_of(row)) for row in rows)))


def chosen(row: Row, key: str, images: list[int]) -> Tensor:
    """The row's values of these images."""
    at = dict(zip(images_of(row), row[key], strict=True))
    return torch.tensor([float(at[i]) for i in images])


def standardised(data_set: str, errors: Tensor) -> float:
    """Mean error as it would be on images that were divided by the deviation of their pixels."""
    return float(errors.mean()) / VARIANCE[data_set.removesuffix("_trained")]


def closer(one: Tensor, other: Tensor) -> str:
    """On how many images the first has less error; ties are named where there are any."""
    count = min(len(one), len(other))
    ties = int((one[:count] == other[:count]).sum())
    return f"{int((one[:count] < other[:count]).sum())} of {count}" + (f", {ties} ties" if ties else "")


def errors_of(row: Row) -> Tensor:
    """Errors in the order of the images."""
    return chosen(row, "each_mse", sorted(images_of(row)))


def labels_right(row: Row, images: list[int]) -> str:
    if row.get("each_right"):
        return f"{chosen(row, 'each_right', images).mean():.0%}"
    return "–" if row["label_accuracy"] is None else f"{row['label_accuracy']:.0%}"


def from_afar(row: Row, images: list[int]) -> str:
    """Large images averaged down, so that grain does not decide."""
    return f"{chosen(row, 'each_ssim_reduced', images).mean():.3f}" if row.get("each_ssim_reduced") else "–"


def further(rows: list[Row]) -> list[Row]:
    """Rows that tell of more images than they share with the other attacks on their data set."""
    return [r for r in rows if r["images"] > len(common([o for o in rows if o["data_set"] == r["data_set"]]))]


def by_itself(row: Row) -> str:
    errors, alike = (chosen(row, key, images_of(row)) for key in ("each_mse", "each_ssim"))
    return (
        f"{row['data_set']} {row['attack']} MSE {errors.mean():.2e} ± {spread(errors):.1e}, SSIM {alike.mean():.3f} ± {spread(alike):.3f} "
        f"({row['images']} images)"
    )


def table(rows: list[Row]) -> str:
    """Attacks on a data set stand beside each other with the images that all of them have."""
    lines = [
        "| data | model | images | attack | label | paper: MSE, SSIM | MSE ± sd | median | MSE on standardised images "
        "| SSIM ± sd | SSIM at 56×56 | label right |",
        "|---|" + "---|" * 11,
    ]
    cells = [(data_set, attack) for data_set in DATA_SETS for attack in PAPER["mnist"]]
    for r in sorted(rows, key=lambda r: cells.index((r["data_set"], r["attack"]))):
        own = common([other for other in rows if other["data_set"] == r["data_set"]])
        errors, alike = (chosen(r, key, own) for key in ("each_mse", "each_ssim"))
        wanted = r.get("wanted", r["images"])
        lines.append(
            f"| {r['of']} | {r['model']} | {len(own)}{f' of {wanted}' if len(own) < wanted else ''} | {r['attack']} "
            f"| {LABELS[r['attack']]} | {PAPER.get(r['data_set'], {}).get(r['attack'], '–')} "
            f"| {errors.mean():.2e} ± {spread(errors):.1e} | {errors.median():.1e} | {standardised(r['data_set'], errors):.2g} "
            f"| {alike.mean():.3f} ± {spread(alike):.3f} | {from_afar(r, own)} | {labels_right(r, own)} |"
        )
    by_cell = {(r["data_set"], r["attack"]): r for r in rows}
    missing = [f"{d} {a}" for d, a in CELLS if (d, a) not in by_cell]
    fewer = [f"{d} {a} ({r['images']} of {r['wanted']} images)" for (d, a), r in by_cell.items() if not whole(r)]
    told = [f"Not measured yet: {', '.join(missing)}."] if missing else []
    told += [f"Still to do: {', '.join(fewer)}."] if fewer else []
    told += [f"With all its images: {', '.join(ahead)}."] if (ahead := [*map(by_itself, further(rows))]) else []
    return "\n".join([*lines, "", " ".join(told)]).rstrip()


def kept_training(model: nn.Module, options: Options, *, epochs: int) -> float:
    """As :func:`trained`, but all attacks and calls get one network: the first that was trained."""
    path, run = options.out / "table1_trained.pt", {"epochs": epochs, "seed": options.seed, "quick": options.quick}
    if path.is_file():
        before = torch.load(path, map_location="cpu", weights_only=True)
        if before["run"] == run:
            model.load_state_dict(before["weights"])
            model.eval()
            return before["accuracy"]
    accuracy = trained(model, options, epochs=epochs)
    torch.save({"run": run, "accuracy": accuracy, "weights": model.state_dict()}, path)
    return accuracy


def split(kind: DataSet, options: Options) -> tuple[Images, Images]:
    """The images of the table, and those of the adversary's own, with which settings are tried."""
    tried = 1 if options.quick else kind.tried
    images = kind.images(options, options.count(kind.count) + tried)
    count = len(images.x) - tried
    return images.first(count), replace(images, x=images.x[count:], y=images.y[count:])


def attacked(kind: DataSet, images: Images, options: Options) -> tuple[Victim, Row]:
    """The model that is attacked, and its accuracy where it was trained."""
    model = kind.model(images, architecture="B", quick=options.quick, seed=options.seed)
    accuracy = {}
    if kind.epochs:
        accuracy = {"accuracy": kept_training(model, options, epochs=1 if options.quick else kind.epochs)}
    return study.victim_of(model, images, options.device), accuracy


def attack_of(name: str, steps: int, setting: Setting) -> Matching:
    """The four attacks of the table. DLG with Adam, as the paper says, not with its own L-BFGS."""
    if name == "ig":
        return inverting_gradients(steps=steps, lr=setting.lr, tv=setting.tv)
    optimizer = AdamW(setting.lr) if name == "tag" else Adam(setting.lr)
    solver = Descent(optimizer, steps, schedule=setting.schedule, project=False)
    return replace(study.matching_attack(name, steps=steps), solver=solver)


def error_of(name: str, setting: Setting, kind: DataSet, victim: Victim, own: Images, options: Options) -> float:
    """Mean error of one setting on images of the adversary's own, with fewer steps."""
    steps = max(1, options.steps(kind.steps) // kind.shorter)
    attack = replace(attack_of(name, steps, setting), precision=kind.precision)
    found = attack.many(victim, study.observed(victim, own), seed=options.seed)
    return float(mse(pictures_of(found, victim), own.x).mean())


def pictures_of(found: Sequence[Reconstruction], victim: Victim) -> Tensor:
    return victim.space.decode(torch.cat([one.x for one in found])).cpu()


@dataclass(frozen=True)
class Cell:
    """One attack on the images of one data set; its row grows piece by piece."""

    data_set: str
    attack: str
    kind: DataSet
    victim: Victim
    images: Images
    own: Images
    options: Options
    results: Rows

    @property
    def key(self) -> Row:
        return {"data_set": self.data_set, "attack": self.attack}

    def begun(self) -> Row:
        """The row so far; before the first piece the settings are tried."""
        before = [row for row in self.results.rows if self.key.items() <= row.items()]
        if before:
            return before[0]
        began = time.perf_counter()
        settings = SETTINGS[self.attack][: 2 if self.options.quick else None]
        errors = [error_of(self.attack, one, self.kind, self.victim, self.own, self.options) for one in settings]
        return {
            **self.key, "of": self.images.name, "steps": self.options.steps(self.kind.steps), "wanted": len(self.images.x),
            "model": "trained" if self.kind.epochs else "untrained", "pieces": 0, "seconds": 0.0, "which": [],
            "tried": [{"setting": repr(one), "mse": float(f"{e:.4g}")} for one, e in zip(settings, errors, strict=True)],
            "seconds_tuning": round(time.perf_counter() - began, 1), "each_mse": [], "each_ssim": [], "each_right": [],
            "each_ssim_reduced": [],
        }  # fmt: skip

    def run(self, more: Row) -> None:
        """Attacks what is missing, as long as there is time."""
        if not self.options.allows(SET_UP):
            self.results.wait(f"{self.data_set} {self.attack}")
            return
        row = self.begun()
        best = min(range(len(row["tried"])), key=lambda i: row["tried"][i]["mse"])
        attack = replace(
            attack_of(self.attack, row["steps"], SETTINGS[self.attack][best]), precision=self.kind.precision
        )
        while missing := [i for i in range(len(self.images.x)) if i not in row["which"]]:
            if not self.options.allows(max(SET_UP, 1.25 * row["seconds"] / max(1, row["pieces"]))):
                self.results.wait(f"{self.data_set} {self.attack}, {len(row['which'])} of {row['wanted']} images")
                return
            row = self._piece(attack, row, missing[: self.kind.piece]) | more
            self.results.drop(**self.key)
            self.results.add(f"{self.data_set} {self.attack}", row)

    def _piece(self, attack: Matching, row: Row, which: list[int]) -> Row:
        began = time.perf_counter()
        images = replace(self.images, x=self.images.x[which], y=self.images.y[which])
        found = attack.many(self.victim, study.observed(self.victim, images), seed=self.options.seed)
        guesses = pictures_of(found, self.victim)
        if not row["which"]:
            self.results.keep(f"{self.data_set}_{self.attack}", guesses[:SHOWN])
        right = [int(one.y[0]) == int(y) for one, y in zip(found, images.y, strict=True) if one.y is not None]
        small, truth = downscale(guesses), downscale(images.x)
        reduced = [] if small is None or truth is None else study.rounded(ssim(small, truth).tolist())
        lists = {
            "which": which, "each_mse": study.rounded(mse(guesses, images.x).tolist()),
            "each_ssim": study.rounded(ssim(guesses, images.x).tolist()), "each_right": right, "each_ssim_reduced": reduced,
        }  # fmt: skip
        whole = {key: [*(row[key] or []), *values] for key, values in lists.items()}
        errors, alike = torch.tensor(whole["each_mse"]), torch.tensor(whole["each_ssim"])
        return row | whole | {
            "images": len(whole["which"]), "mse": float(errors.mean()), "mse_sd": spread(errors),
            "mse_median": float(errors.median()), "ssim": float(alike.mean()), "ssim_sd": spread(alike),
            "ssim_median": float(alike.median()),
            "label_accuracy": sum(whole["each_right"]) / len(whole["each_right"]) if whole["each_right"] else None,
            "attack_settings": f"{attack.objective!r}; {attack.solver!r}", "notes": list(found[0].notes), "pieces": row["pieces"] + 1,
            "seconds": round(row["seconds"] + time.perf_counter() - began, 1),
        }  # fmt: skip


def spread(values: Tensor) -> float:
    """Standard deviation; of a single value 0."""
    return float(values.std()) if len(values) > 1 else 0.0


def whole(row: Row) -> bool:
    """Whether a row tells of all images that it should; those of early runs always do."""
    return row["images"] == row.get("wanted", row["images"])


def run(options: Options, results: Rows) -> None:
    for data_set in ("mnist", "cifar10") if options.quick else DATA_SETS:
        done = {row["attack"] for row in results.rows if row["data_set"] == data_set and whole(row)}
        if done == set(NAMES):
            continue
        kind = DATA_SETS[data_set]
        images, own = split(kind, options)
        victim, accuracy = attacked(kind, images, options)
        results.keep(f"{data_set}_truth", images.x[:SHOWN])
        for name in ("april", "dlg", "tag", "ig"):
            if name not in done:
                Cell(data_set, name, kind, victim, images, own, options, results).run(accuracy)


def panel(rows: list[Row]) -> Panel:
    """For each attack the share of images that are at least so similar, on the images that all attacks have."""
    images = common(rows)
    by_attack = {r["attack"]: sorted(chosen(r, "each_ssim", images).tolist(), reverse=True) for r in rows}
    lines = [
        Line(NAMES[name], [(value, (i + 1) / len(images)) for i, value in enumerate(by_attack[name])])
        for name in NAMES
        if name in by_attack
    ]
    title = f"{rows[0]['of']}, {rows[0]['model']}, {len(images)} image{'s' * (len(images) > 1)}"
    return Panel(title, "SSIM", "share of images with at least that", lines, bounds=(0, 1))


def draw(rows: list[Row], pictures: Pictures, out: Path) -> None:
    """How similar the images of each attack are, and the first of them. Pictures of ImageNet are not ours to show."""
    own = [found for data_set in DATA_SETS if (found := [r for r in rows if r["data_set"] == data_set])]
    if own:
        svg(out / "table1.svg", [panel(found) for found in own], title="How similar reconstructions are")
    for data_set in ("mnist", "cifar10"):
        found = [("original", f"{data_set}_truth"), *((NAMES[a], f"{data_set}_{a}") for a in NAMES)]
        if all(key in pictures for _, key in found):
            grid(out / f"table1_{data_set}.png", [(name, pictures[key][:DRAWN]) for name, key in found])


if __name__ == "__main__":
    study.main(Part("table1", run, draw), __doc__)
