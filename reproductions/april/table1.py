"""Table 1: four attacks by optimisation on architecture B, 500 images each of MNIST and CIFAR-10, 30 of ImageNet.

    python reproductions/april/table1.py --data FOLDER [--datasets mnist,cifar10,imagenet] [--attacks dlg,ig,tag,april]

The paper's budgets: Adam, 800 steps for MNIST, 1500 for CIFAR-10, 5000 for ImageNet. The images of a cell are attacked in pieces, each
one batch (`Matching.many`), one restart each; every image starts from the same seed, so the result does not depend on the pieces.
The paper gives no learning rates; each attack gets the best of a few settings, tried with fewer steps on images that are not among
those of the table. What is done is kept in ``table1_pieces.jsonl``: the same command goes on where it was stopped, several processes
may work on different cells, and with ``--within SECONDS`` no piece is begun that would not be done by then. ImageNet is read
from ``imagenet.npz`` in FOLDER: x uint8, (N, 224, 224, 3) or (N, 3, 224, 224), and y; where it holds fewer images, fewer are attacked.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import study
import torch
import torch.nn.functional as F
from pieces import Clock, Pieces, alone, longest
from study import Images, Options, Row
from torch import Tensor, nn

from leakgauge.attacks import april, inverting_gradients, tag
from leakgauge.core import Reconstruction, Victim
from leakgauge.engine import TF32, Exact, Precision
from leakgauge.inversion import L2, Adam, AdamW, CosineDecay, Descent, Joint, Matching, Steady
from leakgauge.inversion.solvers import Schedule
from leakgauge.measures.image import mse, ssim

SHOWN = 10
PAPER = {
    "mnist": {"dlg": "1.291e-04, 0.997", "ig": "0.043, 0.833", "tag": "3.438e-05, 0.998", "april": "4.796e-05, 0.998"},
    "cifar10": {"dlg": "0.017, 0.959", "ig": "0.125, 0.635", "tag": "0.006, 0.965", "april": "0.002, 0.991"},
    "imagenet": {"dlg": "1.328, 0.056", "ig": "1.671, 0.029", "tag": "1.180, 0.062", "april": "1.092, 0.099"},
}
"""Mean MSE and SSIM of the paper's Table 1. Its MSE on ImageNet exceeds 1, so it is not on images in [0, 1]."""


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
    piece: int = 100
    tried: int = 8
    shorter: int = 4


def photographs_224(options: Options, count: int) -> Images:
    """ImageNet images from ``imagenet.npz``, channels first or last; without a data folder the embedded photographs."""
    if options.data is None:
        return study.large(options, count)
    with np.load(options.data / "imagenet.npz") as archive:
        x, y = torch.from_numpy(archive["x"][:count]), torch.from_numpy(archive["y"][:count]).long()
    if x.shape[1] != 3:
        x = x.permute(0, 3, 1, 2)
    return Images("ImageNet", x.float() / 255, y)


DATA_SETS = {
    "mnist": DataSet(study.digits, 500, 800, study.small_model, Exact()),
    "cifar10": DataSet(study.objects, 500, 1500, study.small_model, Exact()),
    "cifar10_trained": DataSet(study.objects, 100, 1500, study.small_model, Exact(), epochs=10),
    "imagenet": DataSet(photographs_224, 30, 5000, study.base_model, TF32(), piece=10, tried=2, shorter=10),
}


@dataclass(frozen=True)
class Setting:
    """What is chosen for an attack: the learning rate and how it falls; the weight of the total variation (IG alone)."""

    lr: float
    schedule: Schedule = field(default_factory=Steady)
    tv: float = 0.0


SETTINGS: dict[str, list[Setting]] = {"ig": [Setting(0.1, tv=tv) for tv in (0.1, 0.01, 0.001)]} | {
    name: [Setting(0.1), *(Setting(lr, CosineDecay()) for lr in (0.03, 0.1, 0.3))] for name in ("dlg", "tag", "april")
}


def attack_of(name: str, steps: int, setting: Setting) -> Matching:
    """The four attacks of the table. DLG with Adam, as the paper says, not with its own L-BFGS."""
    if name == "ig":
        return inverting_gradients(steps=steps, lr=setting.lr, tv=setting.tv)
    ours = april(steps=steps)
    recipe = {
        "april": ours,
        "dlg": replace(ours, objective=L2(), labels=Joint(), name="dlg with Adam"),
        "tag": tag(steps=steps),
    }[name]
    optimizer = AdamW(setting.lr) if name == "tag" else Adam(setting.lr)
    return replace(recipe, solver=Descent(optimizer, steps, schedule=setting.schedule, project=False))


def attacked(attack: Matching, victim: Victim, images: Images, seed: int) -> list[Reconstruction]:
    return attack.many(victim, study.observed(victim, images), seed=seed)


def pictures(found: Sequence[Reconstruction], victim: Victim) -> Tensor:
    return victim.space.decode(torch.cat([one.x for one in found])).cpu()


@dataclass(frozen=True)
class Cell:
    """One attack on one data set: what it needs, and where its parts are kept."""

    data_set: str
    attack: str
    kind: DataSet
    victim: Victim
    table: Images
    own: Images
    options: Options
    pieces: Pieces
    clock: Clock

    @property
    def key(self) -> Row:
        return {"data_set": self.data_set, "attack": self.attack, "of_images": len(self.table.x)}

    @property
    def steps(self) -> int:
        return self.options.steps(self.kind.steps)

    def matching(self, steps: int, setting: Setting) -> Matching:
        return replace(attack_of(self.attack, steps, setting), precision=self.kind.precision)

    def begins(self, part: str, amount: int) -> bool:
        """Whether there is time: as long as this attack took before, or, where it has not run yet, the slowest of the others."""
        own = self.pieces.done(part=part, **self.key)
        measured = own or self.pieces.done(part=part, data_set=self.data_set)
        fits = self.clock.allows(longest(measured, amount))
        if not fits:
            print(f"{self.data_set} {self.attack}: no time for a {part}", flush=True)
        return fits

    def tuning(self) -> Row | None:
        """Mean error of every setting on images of the adversary's own, with fewer steps; None if there was no time for it."""
        before = self.pieces.done(part="tuning", **self.key)
        if before:
            return before[-1]
        if not self.begins("tuning", len(self.own.x)):
            return None
        began, tried = time.perf_counter(), []
        for setting in SETTINGS[self.attack][: 1 if self.options.quick else None]:
            attack = self.matching(max(1, self.steps // self.kind.shorter), setting)
            guesses = pictures(attacked(attack, self.victim, self.own, self.options.seed), self.victim)
            tried.append({"setting": repr(setting), "mse": float(f"{mse(guesses, self.own.x).mean():.4g}")})
        seconds = round(time.perf_counter() - began, 1)
        self.pieces.add(part="tuning", tried=tried, seconds=seconds, amount=len(self.own.x), **self.key)
        return self.tuning()

    def piece(self, first: int, images: Images, setting: Setting) -> Tensor:
        """Attacks some of the images and keeps what was found about each of them; returns the pictures."""
        attack = self.matching(self.steps, setting)
        began = time.perf_counter()
        found = attacked(attack, self.victim, images, self.options.seed)
        seconds = time.perf_counter() - began
        guesses = pictures(found, self.victim)
        right = [int(one.y[0]) == int(y) for one, y in zip(found, images.y, strict=True) if one.y is not None]
        self.pieces.add(
            part="piece", first=first, amount=len(images.x), seconds=round(seconds, 2), right=right, notes=found[0].notes,
            each_mse=digits_that_count(mse(guesses, images.x)), each_ssim=digits_that_count(ssim(guesses, images.x)),
            attack_settings=f"{attack.objective!r}; {attack.solver!r}", device=study.device_name(self.options.device),
            **self.key,
        )  # fmt: skip
        return guesses

    def missing(self) -> list[int]:
        """Images that no piece tells about."""
        known = {i for row in self.pieces.done(part="piece", **self.key) for i in own_images(row)}
        return [i for i in range(len(self.table.x)) if i not in known]

    def run(self, size: int, shown: Callable[[int, Tensor], None]) -> bool:
        """Goes on with the cell; True when every image has its numbers. ``shown`` gets the pictures of each piece."""
        tuning = self.tuning()
        if tuning is None:
            return False
        best = min(range(len(tuning["tried"])), key=lambda i: tuning["tried"][i]["mse"])
        while missing := self.missing():
            first = missing[0]
            last = next((i for i in range(first, first + size) if i not in missing), first + size)
            if not self.begins("piece", last - first):
                return False
            images = replace(self.table, x=self.table.x[first:last], y=self.table.y[first:last])
            shown(first, self.piece(first, images, SETTINGS[self.attack][best]))
        return True

    def row(self) -> Row:
        """The cell's row, from all its pieces."""
        tuning = self.pieces.done(part="tuning", **self.key)[-1]
        parts = sorted(self.pieces.done(part="piece", **self.key), key=lambda row: row["first"])
        at = {i: (part, n) for part in parts for n, i in enumerate(own_images(part))}  # the last word about an image
        each = [at[i] for i in range(len(self.table.x))]
        errors, alike = (torch.tensor([part[key][n] for part, n in each]) for key in ("each_mse", "each_ssim"))
        right = [part["right"][n] for part, n in each if part["right"]]
        return {
            "data_set": self.data_set, "attack": self.attack, "images": len(each), "of": self.table.name, "steps": self.steps,
            "model": "trained" if self.kind.epochs else "untrained",
            "mse": float(errors.mean()), "mse_sd": float(errors.std()), "mse_median": float(errors.median()),
            "ssim": float(alike.mean()), "ssim_sd": float(alike.std()), "ssim_median": float(alike.median()),
            "label_accuracy": sum(right) / len(right) if right else None,
            "attack_settings": parts[0]["attack_settings"], "tried": tuning["tried"], "notes": parts[0]["notes"],
            "pieces": len(parts), "seconds": round(sum(part["seconds"] for part in parts), 1),
            "seconds_tuning": tuning["seconds"], "device": ", ".join(sorted({part["device"] for part in parts})),
            "each_mse": study.rounded(errors.tolist()), "each_ssim": study.rounded(alike.tolist()),
        }  # fmt: skip


def own_images(piece: Row) -> range:
    return range(piece["first"], piece["first"] + piece["amount"])


def digits_that_count(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def trained(model: nn.Module, options: Options, *, epochs: int) -> float:
    """Trains the model in place on CIFAR-10 (AdamW, one cycle, batches of 500) and returns its test accuracy."""
    data, test = study.objects(options, 50_000, train=True), study.objects(options, 10_000)
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


def table(rows: list[Row]) -> str:
    lines = [
        "| data | model | images | attack | paper: MSE, SSIM | MSE ± sd | SSIM ± sd | label right |",
        "|---|" + "---|" * 7,
    ]
    for r in rows:
        paper = PAPER.get(r["data_set"], {}).get(r["attack"], "–")
        right = "–" if r["label_accuracy"] is None else f"{r['label_accuracy']:.0%}"
        lines.append(
            f"| {r['of']} | {r['model']} | {r['images']} | {r['attack']} | {paper} | {r['mse']:.2e} ± {r['mse_sd']:.1e} "
            f"| {r['ssim']:.3f} ± {r['ssim_sd']:.3f} | {right} |"
        )
    missing = [
        f"{d} {a}" for d in PAPER for a in PAPER[d] if not any((r["data_set"], r["attack"]) == (d, a) for r in rows)
    ]
    return "\n".join([*lines, "", f"Not measured yet: {', '.join(missing)}." if missing else ""]).rstrip()


@dataclass(frozen=True)
class Table:
    """``table1.jsonl`` and ``table1.npz`` in a folder, to which several processes may add."""

    folder: Path
    facts: Row

    @property
    def path(self) -> Path:
        return self.folder / "table1.jsonl"

    def rows(self) -> list[Row]:
        if not self.path.is_file():
            return []
        before, rows = study.read(self.path)
        if any(before[key] != self.facts[key] for key in ("quick", "seed")):
            sys.exit(f"{self.path} comes from a run with another seed or size; give another folder with --out")
        return rows

    def has(self, data_set: str, attack: str) -> bool:
        return any((row["data_set"], row["attack"]) == (data_set, attack) for row in self.rows())

    def add(self, row: Row) -> None:
        with alone(self.folder / "table1.lock"):
            rows = [*self.rows(), row]
            done = {(row["data_set"], row["attack"]) for row in rows}
            complete = all((d, a) in done for d in PAPER for a in PAPER[d])
            seconds = round(sum(row["seconds"] + row["seconds_tuning"] for row in rows), 1)
            study.write(self.path, [self.facts | {"complete": complete, "seconds": seconds}, *rows])

    def keep(self, name: str, first: int, images: Tensor) -> None:
        """The first pictures of a cell; the others are not shown."""
        if first == 0:
            with alone(self.folder / "table1.lock"):
                shown = (images[:SHOWN].clamp(0, 1) * 255).round().byte().numpy()
                study.save(self.folder / "table1.npz", study.load(self.folder / "table1.npz") | {name: shown})


def kept_training(model: nn.Module, options: Options, *, epochs: int) -> float:
    """As :func:`trained`, but all cells and calls attack one network: the first that was trained."""
    path, run = options.out / "table1_trained.pt", {"epochs": epochs, "seed": options.seed, "quick": options.quick}
    with alone(path.with_suffix(".lock")):
        if path.is_file():
            before = torch.load(path, map_location="cpu")
            if before["run"] == run:
                model.load_state_dict(before["weights"])
                model.eval()
                return before["accuracy"]
        accuracy = trained(model, options, epochs=epochs)
        torch.save({"run": run, "accuracy": accuracy, "weights": model.state_dict()}, path)
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models on embedded data, in seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz, CIFAR-10 and imagenet.npz")
    parser.add_argument("--images", type=int, help="how many images, instead of the table's own number")
    parser.add_argument("--datasets", help=f"some of {', '.join(DATA_SETS)}")
    parser.add_argument("--attacks", default="april,dlg,tag,ig")
    parser.add_argument("--piece", type=int, help="how many images at once, instead of the data set's own number")
    parser.add_argument("--within", type=float, help="seconds; a piece that would not be done by then is not begun")
    parser.add_argument("--out", type=Path, default=study.RESULTS)
    given = parser.parse_args()
    clock = Clock.within(given.within)
    options = Options(given.quick, torch.device(given.device), given.seed, given.data, given.out, given.images)
    given.out.mkdir(parents=True, exist_ok=True)
    run: Row = {"quick": options.quick, "seed": options.seed}
    facts: Row = {"study": "table1", **run, "torch": str(torch.__version__)}
    facts |= {"device": study.device_name(options.device)}
    table, pieces = Table(given.out, facts), Pieces(given.out / "table1_pieces.jsonl", run)
    for data_set in (given.datasets or ("mnist,cifar10" if given.quick else ",".join(DATA_SETS))).split(","):
        kind = DATA_SETS[data_set]
        missing = [name for name in given.attacks.split(",") if not table.has(data_set, name)]
        if not missing:
            continue
        tried = 1 if options.quick else kind.tried
        images = kind.images(options, options.count(kind.count) + tried)
        count = len(images.x) - tried
        model = kind.model(images, architecture="B", quick=options.quick, seed=options.seed)
        accuracy = None
        if kind.epochs:
            accuracy = kept_training(model, options, epochs=1 if options.quick else kind.epochs)
        victim = study.victim_of(model, images, options.device)
        own = replace(images, x=images.x[count:], y=images.y[count:])
        table.keep(f"{data_set}_truth", 0, images.first(count).x)
        for name in missing:
            cell = Cell(data_set, name, kind, victim, images.first(count), own, options, pieces, clock)
            if not cell.run(
                given.piece or kind.piece, lambda first, x, key=f"{data_set}_{name}": table.keep(key, first, x)
            ):
                continue
            row = cell.row() | ({} if accuracy is None else {"accuracy": accuracy})
            print({k: v for k, v in row.items() if not k.startswith("each")}, flush=True)
            table.add(row)


if __name__ == "__main__":
    main()
