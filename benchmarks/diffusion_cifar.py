"""The diffusion prior on CIFAR-10: packs the data that must travel, trains the prior, and keeps it in pieces.

    python -m benchmarks.diffusion_cifar pack --data ALL --out DIR [--public 18000] [--other 500]
    python -m benchmarks.diffusion_cifar prior --data DIR --out FOLDER [--kind all half other --seconds 110 60 60]
    python -m benchmarks.diffusion_cifar prior --out FOLDER --quick         seconds on one core, no data needed: crops of photographs

``ALL`` holds ``cifar10_train_a.zip``, ``cifar10_test.zip``, ``weights/cifar10_resnet20.safetensors`` and ``…56``, and, for ``--other``,
``imagenet_500_224.zip``. ``pack`` draws by seed 0 the test images that are attacked, those that settings are chosen on and 1,000 among
which an attacked one must be recognised; no image is in two of these. The prior learns from the first ``--public`` training images
(``all``), from those of the first five classes (``half``), or from crops of other photographs (``other``). It is written in half
precision as ``FOLDER/prior_KIND.0``, ``.1`` …, pieces of at most 14 MiB; :func:`joined` puts them together again.
``benchmarks.diffusion_studies`` attacks with it.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from leakgauge.core import Pixels
from leakgauge.data.embedded import photographs
from leakgauge.priors import fit_diffusion, sample
from reproductions.common.cut import cut_sheets
from reproductions.common.networks.cifar_resnet import CifarResNet, load_cifar_resnet
from reproductions.common.sheets import sheets

POOL, ATTACKED, TUNED_ON = 1000, 64, 16
PIECE = 14 * 2**20
KINDS = ("all", "half", "other")
WEIGHTS = ("cifar10_resnet20.safetensors", "cifar10_resnet56.safetensors")
OTHER_SIDE, CROPS = 64, 5
"""Other photographs travel at 64 pixels a side; crops of 32 are taken at so many places along each side."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Test images in [0, 1]: attacked, used to choose settings, and the others among which an attacked one must be recognised."""

    attacked: tuple[Tensor, Tensor]
    tuned_on: tuple[Tensor, Tensor]
    pool: tuple[Tensor, Tensor]


def pack(data: Path, out: Path, *, public: int, other: int, weights: bool = True) -> None:
    """Copies what a run needs, and no more, from the whole data."""
    out.mkdir(parents=True, exist_ok=True)
    x, y = sheets(data / "cifar10_test.zip")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    rows = {"attacked": order[:ATTACKED], "tuned_on": order[-TUNED_ON:], "pool": order[1000 : 1000 + POOL]}
    arrays = {f"{name}_x": (x[own] * 255).round().byte().numpy() for name, own in rows.items()}
    arrays |= {f"{name}_y": y[own].numpy() for name, own in rows.items()}
    np.savez_compressed(out / "drawn.npz", allow_pickle=False, **arrays)
    if public:
        cut_sheets(data / "cifar10_train_a.zip", out / "cifar10_train.zip", public)
    if other:
        np.savez_compressed(out / "other.npz", x=_photographs(data / "imagenet_500_224.zip", other))
    if weights:
        (out / "weights").mkdir(exist_ok=True)
        for name in WEIGHTS:
            shutil.copyfile(data / "weights" / name, out / "weights" / name)
    for file in sorted(out.rglob("*")):
        if file.is_file():
            print(f"{file.relative_to(out)}: {file.stat().st_size / 1e6:.1f} MB")


def _photographs(archive: Path, count: int) -> np.ndarray:
    found: list[np.ndarray] = []
    with zipfile.ZipFile(archive) as opened:
        for name in sorted(n for n in opened.namelist() if n.lower().endswith((".jpg", ".jpeg")))[:count]:
            picture = Image.open(io.BytesIO(opened.read(name))).convert("RGB")
            found.append(np.asarray(picture.resize((OTHER_SIDE, OTHER_SIDE), Image.Resampling.BOX)))
    return np.stack(found).transpose(0, 3, 1, 2)


def drawn(data: Path | None) -> Drawn:
    """The packed test images; without data, crops of photographs, to see the scripts run."""
    if data is None:
        tiles, labels = crops()
        return Drawn((tiles[:16], labels[:16]), (tiles[16:28], labels[16:28]), (tiles[28:60], labels[28:60]))
    with np.load(data / "drawn.npz", allow_pickle=False) as kept:
        found = {
            name: (torch.from_numpy(kept[f"{name}_x"]).float() / 255, torch.from_numpy(kept[f"{name}_y"]))
            for name in ("attacked", "tuned_on", "pool")
        }
    return Drawn(**found)


def network(depth: int, data: Path | None) -> tuple[CifarResNet, Pixels]:
    """The trained ResNet of that depth; without data a small fresh one."""
    if data is None:
        return CifarResNet(depth=8, width=4).eval(), Pixels((3, 32, 32))
    return load_cifar_resnet(data / "weights" / f"cifar10_resnet{depth}.safetensors")


def crops() -> tuple[Tensor, Tensor]:
    tiles = photographs(224).unfold(2, 32, 32).unfold(3, 32, 32).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32)
    tiles = tiles[torch.randperm(len(tiles), generator=torch.Generator().manual_seed(0))]
    return tiles, torch.arange(len(tiles)) % 10


def public(data: Path | None, kind: str) -> tuple[Tensor, Tensor | None]:
    """The images that the prior learns from, and their classes where these are those of the attacked model."""
    if data is None:
        images, labels = crops()
        return images[60:], None if kind == "other" else labels[60:]
    if kind == "other":
        with np.load(data / "other.npz", allow_pickle=False) as kept:
            large = torch.from_numpy(kept["x"]).float() / 255
        step = (OTHER_SIDE - 32) // (CROPS - 1)
        cut = large.unfold(2, 32, step).unfold(3, 32, step).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 32, 32)
        return torch.cat((F.avg_pool2d(large, 2), cut)), None
    images, labels = sheets(data / "cifar10_train.zip")
    kept = labels < (5 if kind == "half" else 10)
    return images[kept], labels[kept]


def train(given: argparse.Namespace, device: torch.device) -> None:
    """The priors, one after another, each with as many steps as fit into its ``--seconds``."""
    each: float | None = None
    for kind, seconds in zip(given.kind, given.seconds, strict=True):
        began = time.perf_counter()
        images, labels = public(given.data, kind)
        images, labels = images.to(device), None if labels is None else labels.to(device)
        file = given.out / f"prior_{kind}.safetensors"
        fit = partial(
            fit_diffusion, images, labels=labels, classes=None if labels is None else 10, width=given.width,
            batch=given.training_batch, lr=given.rate, ema=0.9995, mirrored=True, seed=given.seed,
        )  # fmt: skip
        if each is None and not given.quick:
            fit(steps=10**6, stop=40)  # compiles
            marks = [time.perf_counter()]
            for stop in (41, 241):
                fit(steps=10**6, stop=stop)
                marks.append(time.perf_counter())
            each = max(1e-4, (marks[2] - marks[1] - (marks[1] - marks[0])) / 200)
        steps = 10 if each is None else max(100, int((seconds - (time.perf_counter() - began) - 8) / each))
        print(f"{kind}: {steps} steps", flush=True)
        made = fit(steps=steps)
        made.save(file, half=True)
        asked = None if labels is None else torch.arange(40, device=device) % (5 if kind == "half" else 10)
        np.savez_compressed(file.with_name(f"samples_{kind}.npz"), _bytes(sample(made, 40, labels=asked)))
        facts = {"kind": kind, "images": len(images), "steps": steps, "batch": given.training_batch}
        facts |= {"width": given.width, "rate": given.rate, "mirrored": True, "seed": given.seed}
        facts |= {"unexplained": made.trained.unexplained, "copies": made.trained.copies}
        facts |= {"seconds": round(time.perf_counter() - began, 1), **machine(device)}
        file.with_suffix(".json").write_text(json.dumps(facts) + "\n", "utf-8")
        print(json.dumps(facts), flush=True)
        in_pieces(file)


def in_pieces(file: Path) -> None:
    """Writes ``file`` beside itself as pieces that are small enough to come back from another machine."""
    content = file.read_bytes()
    for number, first in enumerate(range(0, len(content), PIECE)):
        file.with_suffix(f".{number}").write_bytes(content[first : first + PIECE])


def joined(folder: Path, kind: str, out: Path) -> Path:
    """The prior of ``folder``: as it was trained there, or put together from its pieces into ``out``."""
    whole = folder / f"prior_{kind}.safetensors"
    if whole.is_file():
        return whole
    pieces = sorted(folder.glob(f"prior_{kind}.[0-9]"))
    if not pieces:
        raise SystemExit(f"{folder} holds no prior_{kind}")
    file = out / whole.name
    file.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    shutil.copyfile(whole.with_suffix(".json"), file.with_suffix(".json"))
    return file


def machine(device: torch.device) -> dict[str, object]:
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    return {"torch": torch.__version__, "device": name}


def _bytes(images: Tensor) -> np.ndarray:
    return (images.clamp(0, 1) * 255).round().byte().cpu().numpy()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("pack", "prior"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--public", type=int, default=18_000, help="training images to pack")
    parser.add_argument("--other", type=int, default=0, help="other photographs to pack")
    parser.add_argument("--kind", nargs="+", default=["all"], choices=KINDS, help="what each prior learns from")
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument(
        "--seconds",
        type=float,
        nargs="+",
        default=[225.0],
        help="for the training of each prior, with reading the images",
    )
    parser.add_argument("--training-batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.task == "pack":
        pack(given.data, given.out, public=given.public, other=given.other)
        return
    if given.quick:
        given.data, given.width, given.training_batch, given.seconds = None, 8, 16, [0.0] * len(given.kind)
    elif given.data is None:
        parser.error("give --data DIR, or --quick")
    given.out.mkdir(parents=True, exist_ok=True)
    train(given, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


if __name__ == "__main__":
    main()
