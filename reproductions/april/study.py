"""What the studies of this folder share: options, data, victims, attacks on many images at once, and how results are written."""

from __future__ import annotations

import argparse
import io
import json
import signal
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from leakgauge.attacks import april, inverting_gradients, tag
from leakgauge.audit import score
from leakgauge.channels import Gradient
from leakgauge.core import Defense, Observation, Pixels, Reconstruction, Victim, share
from leakgauge.data.embedded import fashion, photographs
from leakgauge.data.standard import read_cifar
from leakgauge.engine import Exact, Precision
from leakgauge.inversion import L2, Joint, Matching
from leakgauge.measures.image import pair
from leakgauge.models.vit import ViT
from reproductions.april.files import Pictures, Row, load, read, save, write
from reproductions.common.runner import commit

RESULTS = Path(__file__).parent / "results"
SHOWN = 112
"""Largest side of a picture in a figure."""


@dataclass(frozen=True)
class Clock:
    """The time that is left until ``end`` (of ``time.monotonic``); without an end there is always enough."""

    end: float | None = None

    @classmethod
    def within(cls, seconds: float | None) -> Clock:
        return cls(None if seconds is None else time.monotonic() + seconds)

    def allows(self, seconds: float) -> bool:
        return self.end is None or time.monotonic() + seconds <= self.end


@dataclass(frozen=True)
class Options:
    """The command line of every study."""

    quick: bool
    device: torch.device
    seed: int
    data: Path | None
    out: Path
    images: int | None
    clock: Clock = field(default_factory=Clock)
    first: int | None = None

    def count(self, full: int, quick: int = 2) -> int:
        """How many images: as asked for, else the study's own number."""
        return self.images or (quick if self.quick else full)

    def steps(self, full: int, quick: int = 12) -> int:
        return quick if self.quick else full


@dataclass
class Results:
    """Rows of numbers (one JSON line each) and pictures (uint8 arrays), gathered while a study runs."""

    rows: list[Row] = field(default_factory=list)
    pictures: Pictures = field(default_factory=dict)
    seconds: float = 0.0
    """What earlier runs took."""
    devices: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    """Where earlier runs ran, and with which torch."""
    waiting: list[str] = field(default_factory=list)
    """What there was no time for."""

    def has(self, **wanted: Any) -> bool:
        """Whether there is a row with these values, of an earlier run perhaps."""
        return any(all(row.get(key) == value for key, value in wanted.items()) for row in self.rows)

    def drop(self, **wanted: Any) -> None:
        """Removes the rows with these values, which are measured anew."""
        self.rows = [row for row in self.rows if any(row.get(key) != value for key, value in wanted.items())]

    def wait(self, what: str) -> None:
        print(f"{what}: to go on later", flush=True)
        self.waiting.append(what)

    def add(self, **values: Any) -> None:
        self.rows.append(values)
        shown = {k: v for k, v in values.items() if not isinstance(v, list)}
        print(json.dumps(shown), flush=True)

    def keep(self, name: str, images: Tensor) -> None:
        """Images (N, C, H, W) in [0, 1] under ``name``; those wider than any figure shows them are averaged down."""
        if images.shape[-1] > SHOWN:
            images = F.adaptive_avg_pool2d(images, (SHOWN, SHOWN))
        self.pictures[name] = (images.detach().cpu().clamp(0, 1) * 255).round().byte().numpy()


# --- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Images (N, C, H, W) in [0, 1] and labels, under the name of where they come from."""

    name: str
    x: Tensor
    y: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    def first(self, count: int) -> Images:
        return replace(self, x=self.x[:count], y=self.y[:count])


def taking_turns(labels: Tensor) -> Tensor:
    """Indices such that the classes take turns: the first of each class, then the second of each, …"""
    seen: dict[int, int] = {}
    turn: list[int] = []
    for label in labels.tolist():
        turn.append(seen.get(label, 0))
        seen[label] = turn[-1] + 1
    return torch.tensor(sorted(range(len(turn)), key=lambda i: (turn[i], int(labels[i]))))


def digits(options: Options, count: int) -> Images:
    """MNIST test images, the classes taking turns, from ``mnist.npz`` in the data folder; else embedded Fashion-MNIST."""
    if options.data is None:
        x, y = fashion("test")
        return Images("Fashion-MNIST (embedded)", x, y).first(count)
    with np.load(options.data / "mnist.npz") as archive:
        x, y = archive["x_test"], torch.from_numpy(archive["y_test"]).long()
    order = taking_turns(y)[:count]
    return Images("MNIST", torch.from_numpy(x)[order][:, None].float() / 255, y[order])


def objects(options: Options, count: int, *, train: bool = False) -> Images:
    """CIFAR-10, test images with the classes taking turns; without a data folder the embedded photographs at 32×32.

    The folder holds CIFAR-10's binary version (``*.bin``), or lossless sheets of 10×10 images in
    ``cifar10_train_a.zip`` (25,000), optionally ``cifar10_train_b.zip``, and ``cifar10_test.zip``, labels in ``labels.npy``.
    """
    if options.data is None:
        x = photographs(32)
        found = Images("photographs at 32×32 (embedded)", x, torch.arange(len(x)))
        times = -(-count // len(x))
        return replace(found, x=x.repeat(times, 1, 1, 1), y=found.y.repeat(times)).first(count)
    if list(options.data.glob("*.bin")):
        x, y = read_cifar(options.data if train else options.data / "test_batch.bin")
    else:
        names = ("cifar10_train_a.zip", "cifar10_train_b.zip") if train else ("cifar10_test.zip",)
        first = count if train else 20 * count + 200  # of which enough are of each class
        parts = [sheets(options.data / name, 32, first) for name in names if (options.data / name).is_file()]
        x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    if train:
        return Images("CIFAR-10", x, y).first(count)
    order = taking_turns(y)[:count]
    return Images("CIFAR-10", x[order], y[order])


def sheets(path: Path, side: int, first: int) -> tuple[Tensor, Tensor]:
    """The ``first`` images and labels from a zip of picture sheets of 10×10, images row by row."""
    with zipfile.ZipFile(path) as archive:
        labels = np.load(io.BytesIO(archive.read("labels.npy")))[:first]
        found = []
        names = sorted(n for n in archive.namelist() if n.startswith("sheet_"))
        for name in names[: -(-len(labels) // 100)]:
            sheet = np.asarray(Image.open(io.BytesIO(archive.read(name))))
            grid = sheet.shape[0] // side
            found.append(sheet.reshape(grid, side, grid, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3))
    x = np.ascontiguousarray(np.concatenate(found)[: len(labels)].transpose(0, 3, 1, 2))
    return torch.from_numpy(x).float() / 255, torch.from_numpy(labels).long()


def large(options: Options, count: int) -> Images:
    """The embedded photographs at 224×224 (32×32 in quick runs), eight different class numbers; ImageNet is not ours to show."""
    x = photographs(32 if options.quick else 224)
    return Images("photographs (embedded)", x, 100 * torch.arange(len(x)) % 1000).first(count)


# --- victims ---------------------------------------------------------------------------------------------------------


def small_model(images: Images, *, architecture: str, quick: bool, **changes: Any) -> ViT:
    """The paper's model for MNIST and CIFAR-10: 4×4 patches, width 384, depth 4, 4 heads, positions from N(0, 1).

    With 7-pixel patches on MNIST, architecture B has the paper's 7,123,210 parameters. Positions start at scale 1 as in
    the code the paper names (ViT-CIFAR); at scale 0.02 the optimisation attacks hardly work.
    """
    channels, side, _ = images.shape
    settings: dict[str, Any] = {
        "in_channels": channels, "side": side, "patch": side // 4, "width": 384, "depth": 4, "heads": 4, "classes": 10,
        "qkv_bias": False, "final_norm": False, "position_std": 1.0, "residual": architecture == "B",
    }  # fmt: skip
    if quick:
        settings |= {"width": 64, "depth": 2}
    return ViT(**(settings | changes))


def base_model(images: Images, *, architecture: str, quick: bool, **changes: Any) -> ViT:
    """ViT-Base with 16-pixel patches and 1000 classes, untrained; positions from N(0, 1), no bias in q, k, v (vit-pytorch)."""
    channels, side, _ = images.shape
    settings: dict[str, Any] = {
        "in_channels": channels, "side": side, "patch": 16, "width": 768, "depth": 12, "heads": 12, "classes": 1000,
        "qkv_bias": False, "position_std": 1.0, "residual": architecture == "B",
    }  # fmt: skip
    if quick:
        settings |= {"depth": 2, "patch": 8, "width": 192}
    return ViT(**(settings | changes))


class Make(Protocol):
    """Either of the two model makers."""

    def __call__(self, images: Images, *, architecture: str, quick: bool, **changes: Any) -> ViT: ...


def space_of(images: Images) -> Pixels:
    return Pixels(images.shape)


def victim_of(model: nn.Module, images: Images, device: torch.device) -> Victim:
    """The model in eval mode, taking image values in [0, 1] as they are."""
    return Victim(model.to(device), space_of(images))


# --- attacks ---------------------------------------------------------------------------------------------------------


def matching_attack(
    name: str, *, steps: int, frames: Sequence[int] = (), precision: Precision | None = None
) -> Matching:
    """The attacks the paper compares, all by Adam with learning rate 0.1, as its figures do.

    ``l2`` is what is left of APRIL when no gradient of the positions is shared. The paper does not say how the others were
    set: TAG's alpha (0.1) and the weight of total variation (1e-4) did best of three each, in 300 steps on two MNIST images
    and a narrower model. Frames beyond ``steps`` are left out.
    """
    ours = april(steps=steps)
    attacks = {
        "april": ours,
        "l2": replace(ours, objective=L2(), name="l2"),
        "dlg": replace(ours, objective=L2(), labels=Joint(), name="dlg with Adam"),
        "tag": tag(steps=steps, lr=0.1),
        "ig": inverting_gradients(steps=steps, tv=1e-4),
    }
    kept = tuple(frame for frame in frames if frame < steps)
    return replace(attacks[name], frames=kept, precision=precision or Exact())


def observed(
    victim: Victim, images: Images, *, batch: int = 1, defenses: Sequence[Defense] = (), seed: int = 0
) -> list[Observation]:
    """One observation for each ``batch`` images in turn."""
    x, y = victim.space.encode(images.x).to(victim.device), images.y.to(victim.device)
    return [
        share(victim, Gradient(), x[i : i + batch], y[i : i + batch], defenses=defenses, secret=seed + i)
        for i in range(0, len(x) - batch + 1, batch)
    ]


def curves(found: Sequence[Reconstruction], seen: Sequence[Observation], images: Images) -> dict[str, Any]:
    """What the attack minimises, as a share of ‖g*‖² (median over the images), and the mean error of its image, by step."""
    squares = torch.tensor([sum(float(t.double().square().sum()) for t in one.signal.values()) for one in seen])
    losses = torch.stack([one.trace.losses[:, 0] for one in found], 1) / squares
    space = space_of(images)
    frames = torch.stack([one.trace.snapshots for one in found], 1).flatten(1, 2)  # (frames, images, C, H, W)
    guesses = torch.stack([space.decode(frame) for frame in frames])
    errors = (guesses - images.x[None]).square().flatten(2).mean(2)
    return {
        "loss_steps": list(found[0].trace.steps),
        "loss": rounded(losses.median(1).values.tolist()),
        "frame_steps": list(found[0].trace.snapshot_steps),
        "frame_mse": rounded(errors.mean(1).tolist()),
        "frame_mse_quartiles": [rounded(q.tolist()) for q in errors.quantile(torch.tensor([0.25, 0.75]), 1)],
    }


def measured(found: Sequence[Reconstruction], images: Images, space: Pixels) -> dict[str, Any]:
    """Means over all images, and every image's value, with batches paired one to one."""
    size = len(found[0].x)
    scores = [
        score(one, space.encode(images.x[i * size : (i + 1) * size]), images.y[i * size : (i + 1) * size], space=space)
        for i, one in enumerate(found)
    ]
    lists = {name: [v for s in scores for v in getattr(s, name)] for name in ("mse", "ssim")}
    right = [v for s in scores for v in (s.labels or ())]
    smaller = [v for s in scores for v in (s.ssim_reduced or ())]  # of large images
    return {
        "images": len(lists["mse"]),
        "mse": mean(lists["mse"]),
        "ssim": mean(lists["ssim"]),
        "label_accuracy": mean(right) if right else None,
        "each_mse": rounded(lists["mse"]),
        "each_ssim": rounded(lists["ssim"]),
        **({"each_ssim_reduced": rounded(smaller)} if smaller else {}),
    }


def shown(found: Sequence[Reconstruction], space: Pixels) -> Tensor:
    """All reconstructed images, in [0, 1]."""
    return torch.cat([space.decode(one.x.cpu()) for one in found])


def in_order(found: Tensor, truths: Tensor) -> Tensor:
    """Reconstructions in the order of the images they are paired with."""
    return found[torch.argsort(pair(found, truths))]


def trained(rows: Sequence[Row]) -> str:
    """On what the models of the accuracy rows were trained, in words."""
    facts = {(row["data"], row["trained_on"], row["epochs"]) for row in rows if row["part"] == "accuracy"}
    return "; ".join(
        f"Trained on {count:,} images of {data}, {epochs} epochs." for data, count, epochs in sorted(facts)
    )


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def rounded(values: Sequence[float]) -> list[float]:
    """Four digits that count, so that committed files stay small."""
    return [float(f"{value:.4g}") for value in values]


# --- running ---------------------------------------------------------------------------------------------------------

Run = Callable[[Options, Results], None]
Draw = Callable[[list[Row], Pictures, Path], None]


def main(name: str, run: Run, draw: Draw, about: str | None, *, goes_on: bool = False) -> None:
    """Runs one study and writes ``name.jsonl``, ``name.npz`` and its figures; with --draw only the figures, from those files.

    A study that ``goes_on`` leaves out what an earlier run of the same size and seed has left there.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models on embedded data, in seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz and CIFAR-10; embedded images without it")
    parser.add_argument("--images", type=int, help="how many images, instead of the study's own number")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results and figures")
    parser.add_argument("--within", type=float, help="seconds, after which studies that go on begin nothing more")
    parser.add_argument("--first", type=int, help="only so many cases; the others wait (batches.py)")
    parser.add_argument("--draw", action="store_true", help="only draw the figures, from the results in --out")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if not given.draw:
        clock, device = Clock.within(given.within), torch.device(given.device)
        options = Options(given.quick, device, given.seed, given.data, given.out, given.images, clock, given.first)
        recorded(name, run, options, earlier(name, options) if goes_on else None)
    _, rows = read(given.out / f"{name}.jsonl")
    draw(rows, load(given.out / f"{name}.npz"), given.out)


def earlier(name: str, options: Options) -> Results:
    """Rows and pictures that a run of the same size and seed has left."""
    path = options.out / f"{name}.jsonl"
    facts, rows = read(path) if path.is_file() else ({}, [])
    if (facts.get("quick"), facts.get("seed")) != (options.quick, options.seed):
        return Results()
    print(f"{len(rows)} rows in {path} are kept; to measure them anew give another folder with --out", flush=True)
    devices, versions = (tuple(facts[key].split(", ")) for key in ("device", "torch"))
    return Results(rows, load(path.with_suffix(".npz")), facts["seconds"], devices, versions)


def recorded(name: str, run: Run, options: Options, before: Results | None = None) -> None:
    """Runs the study and writes what it found; also what it had found when it was told to stop or failed."""
    signal.signal(signal.SIGTERM, _stop)
    began, results, complete = time.perf_counter(), before or Results(), False
    try:
        run(options, results)
        complete = not results.waiting
    finally:
        facts = {"study": name, "seed": options.seed, "quick": options.quick, "complete": complete}
        devices = dict.fromkeys([*results.devices, device_name(options.device)])
        facts |= {"device": ", ".join(devices)}
        facts |= {"torch": ", ".join(dict.fromkeys([*results.torch, torch.__version__]))}
        facts |= {"commit": commit(), "seconds": round(results.seconds + time.perf_counter() - began, 1)}
        write(options.out / f"{name}.jsonl", [facts, *results.rows])
        save(options.out / f"{name}.npz", results.pictures)


def _stop(*_: object) -> None:
    """Ends the run once: ``timeout`` sends its signal twice where it is itself told to stop, and the second must not end the writing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit("stopped before the end")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
