"""Table 1: four attacks by optimisation on architecture B, 500 images each of MNIST and CIFAR-10, 30 of ImageNet.

    python reproductions/april/table1.py --data FOLDER [--datasets mnist,cifar10,imagenet] [--attacks dlg,ig,tag,april]

The paper's budgets: Adam, 800 steps for MNIST, 1500 for CIFAR-10, 5000 for ImageNet. All images of a data set are attacked
in one batch (`Matching.many`), one restart each. The paper gives no learning rates; each attack gets the best of a few
settings, tried with a quarter of the steps on eight images that are not among those of the table. Finished cells are kept: the
same command goes on where it was stopped. ``imagenet.npz`` (x uint8 (N, 224, 224, 3), y) is read from FOLDER.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import study
import torch
import torch.nn.functional as F
from study import Images, Options, Row
from torch import Tensor, nn

from leakgauge.attacks import april, inverting_gradients, tag
from leakgauge.core import Reconstruction, Victim
from leakgauge.engine import TF32, Exact, Precision
from leakgauge.inversion import L2, Adam, AdamW, CosineDecay, Descent, Joint, Matching, Steady
from leakgauge.inversion.solvers import Schedule
from leakgauge.measures.image import mse, ssim

SHOWN = 10
TRIED = 8
PAPER = {
    "mnist": {"dlg": "1.291e-04, 0.997", "ig": "0.043, 0.833", "tag": "3.438e-05, 0.998", "april": "4.796e-05, 0.998"},
    "cifar10": {"dlg": "0.017, 0.959", "ig": "0.125, 0.635", "tag": "0.006, 0.965", "april": "0.002, 0.991"},
    "imagenet": {"dlg": "1.328, 0.056", "ig": "1.671, 0.029", "tag": "1.180, 0.062", "april": "1.092, 0.099"},
}
"""Mean MSE and SSIM of the paper's Table 1. Its MSE on ImageNet exceeds 1, so it is not on images in [0, 1]."""


@dataclass(frozen=True)
class DataSet:
    """Where a row's images come from, how many, for how many steps, against which model."""

    images: Callable[[Options, int], Images]
    count: int
    steps: int
    model: study.Make
    precision: Precision
    epochs: int = 0


def photographs_224(options: Options, count: int) -> Images:
    """ImageNet images from ``imagenet.npz``; without a data folder the embedded photographs."""
    if options.data is None:
        return study.large(options, count)
    with np.load(options.data / "imagenet.npz") as archive:
        x, y = torch.from_numpy(archive["x"][:count]), torch.from_numpy(archive["y"][:count]).long()
    return Images("ImageNet", x.permute(0, 3, 1, 2).float() / 255, y)


DATA_SETS = {
    "mnist": DataSet(study.digits, 500, 800, study.small_model, Exact()),
    "cifar10": DataSet(study.objects, 500, 1500, study.small_model, Exact()),
    "cifar10_trained": DataSet(study.objects, 100, 1500, study.small_model, Exact(), epochs=10),
    "imagenet": DataSet(photographs_224, 30, 5000, study.base_model, TF32()),
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


def tuned(
    name: str, kind: DataSet, victim: Victim, images: Images, steps: int, *, seed: int, quick: bool
) -> tuple[Setting, list[Row]]:
    """The setting with the lowest mean error on images of the adversary's own, with a quarter of the steps."""
    tried: list[Row] = []
    settings = SETTINGS[name][:1] if quick else SETTINGS[name]
    for setting in settings:
        attack = replace(attack_of(name, max(1, steps // 4), setting), precision=kind.precision)
        error = float(mse(pictures(attacked(attack, victim, images, seed), victim), images.x).mean())
        tried.append({"setting": repr(setting), "mse": float(f"{error:.4g}")})
    best = min(range(len(tried)), key=lambda i: tried[i]["mse"])
    return SETTINGS[name][best], tried


def cell(
    data_set: str, name: str, kind: DataSet, model: nn.Module, images: Images, options: Options
) -> tuple[Row, Tensor]:
    victim = study.victim_of(model, images, options.device)
    count = options.count(kind.count)
    steps = options.steps(kind.steps)
    own, table = replace(images, x=images.x[count:], y=images.y[count:]), images.first(count)
    began = time.perf_counter()
    setting, tried = tuned(name, kind, victim, own, steps, seed=options.seed, quick=options.quick)
    tuning = time.perf_counter() - began
    attack = replace(attack_of(name, steps, setting), precision=kind.precision)
    began = time.perf_counter()
    found = attacked(attack, victim, table, options.seed)
    seconds = time.perf_counter() - began
    guesses = pictures(found, victim)
    errors, alike = mse(guesses, table.x), ssim(guesses, table.x)
    right = [int(one.y[0]) == int(y) for one, y in zip(found, table.y, strict=True) if one.y is not None]
    row: Row = {
        "data_set": data_set, "attack": name, "images": len(table.x), "of": images.name, "steps": steps,
        "model": "trained" if kind.epochs else "untrained",
        "mse": float(errors.mean()), "mse_sd": float(errors.std()), "mse_median": float(errors.median()),
        "ssim": float(alike.mean()), "ssim_sd": float(alike.std()), "ssim_median": float(alike.median()),
        "label_accuracy": sum(right) / len(right) if right else None,
        "attack_settings": f"{attack.objective!r}; {attack.solver!r}",
        "tried": tried, "notes": list(found[0].notes),
        "seconds": round(seconds, 1), "seconds_tuning": round(tuning, 1), "device": study.device_name(options.device),
        "each_mse": study.rounded(errors.tolist()), "each_ssim": study.rounded(alike.tolist()),
    }  # fmt: skip
    return row, guesses[:SHOWN]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models on embedded data, in seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz, CIFAR-10 and imagenet.npz")
    parser.add_argument("--images", type=int, help="how many images, instead of the table's own number")
    parser.add_argument("--datasets", help=f"some of {', '.join(DATA_SETS)}")
    parser.add_argument("--attacks", default="april,dlg,tag,ig")
    parser.add_argument("--out", type=Path, default=study.RESULTS)
    given = parser.parse_args()
    options = Options(given.quick, torch.device(given.device), given.seed, given.data, given.out, given.images)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "table1.jsonl"
    rows = study.read(path)[1] if path.is_file() else []
    kept = study.load(given.out / "table1.npz")
    facts: Row = {"study": "table1", "seed": options.seed, "quick": options.quick, "torch": str(torch.__version__)}
    facts |= {"device": study.device_name(options.device)}
    for data_set in (given.datasets or ("mnist,cifar10" if given.quick else ",".join(DATA_SETS))).split(","):
        kind = DATA_SETS[data_set]
        images = kind.images(options, options.count(kind.count) + (1 if options.quick else TRIED))
        model = kind.model(images, architecture="B", quick=options.quick, seed=options.seed)
        accuracy = None
        if kind.epochs:
            accuracy = trained(model, options, epochs=1 if options.quick else kind.epochs)
        kept[f"{data_set}_truth"] = (images.x[:SHOWN] * 255).round().byte().numpy()
        for name in given.attacks.split(","):
            if any((row["data_set"], row["attack"]) == (data_set, name) for row in rows):
                continue
            row, shown = cell(data_set, name, kind, model, images, options)
            if accuracy is not None:
                row["accuracy"] = accuracy
            print({k: v for k, v in row.items() if not k.startswith("each")}, flush=True)
            rows.append(row)
            kept[f"{data_set}_{name}"] = (shown * 255).round().byte().numpy()
            done = {(row["data_set"], row["attack"]) for row in rows}
            facts["complete"] = all((d, a) in done for d in PAPER for a in PAPER[d])
            facts["seconds"] = sum(row["seconds"] + row["seconds_tuning"] for row in rows)
            study.write(path, [facts, *rows])
            study.save(given.out / "table1.npz", kept)


if __name__ == "__main__":
    main()
