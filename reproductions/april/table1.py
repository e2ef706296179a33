"""Table 1: four attacks by optimisation on architecture B, 500 images each of MNIST and CIFAR-10, 30 of ImageNet.

    python -m reproductions.april.table1 --data FOLDER [--datasets mnist,cifar10,imagenet] [--attacks dlg,ig,tag,april]

The paper's budgets: Adam, 800 steps for MNIST, 1500 for CIFAR-10, 5000 for ImageNet. The images of a cell are attacked in pieces, each
one batch (`Matching.many`), one restart each; every image starts from the same seed, so the result does not depend on the pieces.
The paper gives no learning rates; each attack gets the best of a few settings, tried with fewer steps on images that are not among
those of the table. What is done is kept in ``table1_pieces.jsonl``, the state of a piece that was stopped in ``table1_*.pt``: the same
command goes on where it was. With ``--within SECONDS`` it stops by itself. The attacks take turns, a piece each, and rows of cells that
lack images are written too; the table compares the attacks of a data set on the images that all of them have. ImageNet is read
from ``imagenet.npz`` in FOLDER: x uint8, (N, 224, 224, 3) or (N, 3, 224, 224), and y; where it holds fewer images, fewer are attacked.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.engine import TF32, Exact, Fused
from reproductions.april import study
from reproductions.april.cells import Cell, DataSet, Table, spread, whole
from reproductions.april.pieces import Clock, Pieces, alone
from reproductions.april.study import Images, Options, Row

PAPER = {
    "mnist": {"dlg": "1.291e-04, 0.997", "ig": "0.043, 0.833", "tag": "3.438e-05, 0.998", "april": "4.796e-05, 0.998"},
    "cifar10": {"dlg": "0.017, 0.959", "ig": "0.125, 0.635", "tag": "0.006, 0.965", "april": "0.002, 0.991"},
    "imagenet": {"dlg": "1.328, 0.056", "ig": "1.671, 0.029", "tag": "1.180, 0.062", "april": "1.092, 0.099"},
}
"""Mean MSE and SSIM of the paper's Table 1. Its MSE on ImageNet exceeds 1, so it is not on images in [0, 1]."""
NAMES = {"dlg": "DLG", "ig": "Inverting Gradients", "tag": "TAG", "april": "APRIL"}
CELLS = [(data_set, attack) for data_set, attacks in PAPER.items() for attack in attacks]


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
        "| data | model | images | attack | paper: MSE, SSIM | MSE ± sd | SSIM ± sd | SSIM at 56×56 | label right |",
        "|---|" + "---|" * 8,
    ]
    cells = [(data_set, attack) for data_set in DATA_SETS for attack in PAPER["mnist"]]
    for r in sorted(rows, key=lambda r: cells.index((r["data_set"], r["attack"]))):
        own = common([other for other in rows if other["data_set"] == r["data_set"]])
        errors, alike = (chosen(r, key, own) for key in ("each_mse", "each_ssim"))
        wanted = r.get("wanted", r["images"])
        lines.append(
            f"| {r['of']} | {r['model']} | {len(own)}{f' of {wanted}' if len(own) < wanted else ''} | {r['attack']} "
            f"| {PAPER.get(r['data_set'], {}).get(r['attack'], '–')} | {errors.mean():.2e} ± {spread(errors):.1e} "
            f"| {alike.mean():.3f} ± {spread(alike):.3f} | {from_afar(r, own)} | {labels_right(r, own)} |"
        )
    by_cell = {(r["data_set"], r["attack"]): r for r in rows}
    missing = [f"{d} {a}" for d, a in CELLS if (d, a) not in by_cell]
    fewer = [f"{d} {a} ({r['images']} of {r['wanted']} images)" for (d, a), r in by_cell.items() if not whole(r)]
    told = [f"Not measured yet: {', '.join(missing)}."] if missing else []
    told += [f"To go on: {', '.join(fewer)}."] if fewer else []
    told += [f"With all its images: {', '.join(ahead)}."] if (ahead := [*map(by_itself, further(rows))]) else []
    return "\n".join([*lines, "", " ".join(told)]).rstrip()


def kept_training(model: nn.Module, options: Options, *, epochs: int) -> float:
    """As :func:`trained`, but all cells and calls attack one network: the first that was trained."""
    path, run = options.out / "table1_trained.pt", {"epochs": epochs, "seed": options.seed, "quick": options.quick}
    with alone(path.with_suffix(".lock")):
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
    parser.add_argument("--plain", action="store_true", help="no fused kernels, where torch.compile does not work")
    parser.add_argument("--within", type=float, help="seconds, after which it stops; the same command goes on")
    parser.add_argument("--out", type=Path, default=study.RESULTS)
    given = parser.parse_args()
    clock = Clock.within(given.within)
    options = Options(given.quick, torch.device(given.device), given.seed, given.data, given.out, given.images)
    given.out.mkdir(parents=True, exist_ok=True)
    run: Row = {"quick": options.quick, "seed": options.seed}
    facts: Row = {"study": "table1", **run, "torch": str(torch.__version__)}
    facts |= {"device": study.device_name(options.device)}
    table, pieces = Table(given.out, facts, CELLS), Pieces(given.out / "table1_pieces.jsonl", run)
    for data_set in (given.datasets or ("mnist,cifar10" if given.quick else ",".join(DATA_SETS))).split(","):
        kind = DATA_SETS[data_set]
        if given.plain and isinstance(kind.precision, Fused):
            kind = replace(kind, precision=kind.precision.of)
        missing = [name for name in given.attacks.split(",") if not table.has(data_set, name)]
        if not missing:
            continue
        images, own = split(kind, options)
        victim, accuracy = attacked(kind, images, options)
        table.keep(f"{data_set}_truth", 0, images.x)
        cells = [Cell(data_set, name, kind, victim, images, own, options, pieces, clock) for name in missing]
        for cell in cells:
            if not cell.missing():  # killed after the last piece, before its row
                table.put(cell.row() | accuracy)
        while (
            cells
        ):  # the attack with the fewest images first, so that a stopped run has all attacks on the same images
            cell = min(cells, key=lambda cell: len(cell.done()))
            done = cell.advance(given.piece or kind.piece)
            if done is None:
                cells.remove(cell)
                continue
            table.keep(f"{data_set}_{cell.attack}", *done)
            row = cell.row() | accuracy
            print({k: v for k, v in row.items() if k != "which" and not k.startswith("each")}, flush=True)
            table.put(row)


if __name__ == "__main__":
    main()
