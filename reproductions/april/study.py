"""What the studies of this folder share: options, data, victims, attacks on many images at once, and how results are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
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
from reproductions.common import runner
from reproductions.common.drawing import grid
from reproductions.common.gates import squared_length
from reproductions.common.runner import Part, Pictures, Row, draw_part, rounded, run_part
from reproductions.common.sheets import sheets

RESULTS = Path(__file__).parent / "results"
Draw = Callable[[list[Row], Pictures, Path], object]
UNSCALED = "_unscaled"
"""What names of rows and figures end in where logits are not divided by √d."""


@dataclass(frozen=True, kw_only=True)
class Options(runner.Options):
    """``images`` replaces a study's own number of images; ``first`` limits the cases of ``batches.py``.

    ``unscaled`` models do not divide the logits of the attention by √d, as one reading of the paper's Eq. (4) has it.
    """

    images: int | None = None
    first: int | None = None
    unscaled: bool = False

    def count(self, full: int, quick: int = 2) -> int:
        """How many images: as asked for, else the study's own number."""
        return self.images or (quick if self.quick else full)

    def steps(self, full: int, quick: int = 12) -> int:
        return quick if self.quick else full


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
        parts = [sheets(options.data / name, first) for name in names if (options.data / name).is_file()]
        x, y = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    if train:
        return Images("CIFAR-10", x, y).first(count)
    order = taking_turns(y)[:count]
    return Images("CIFAR-10", x[order], y[order])


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
    squares = torch.tensor([squared_length(one.signal) for one in seen])
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


def measured(found: Sequence[Reconstruction], images: Images) -> dict[str, Any]:
    """Means over all images, and every image's value, with batches paired one to one."""
    size, space = len(found[0].x), space_of(images)
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


def lines(path: Path, pictures: Pictures, data: str, names: Sequence[str], *, side: int) -> None:
    """One line of pictures for each name. They are not committed: where one is missing, the figure stays as it is."""
    if all(f"{data}/{name}" in pictures for name in names):
        grid(path, [(name, pictures[f"{data}/{name}"]) for name in names], side=side)


# --- running ---------------------------------------------------------------------------------------------------------


def main(part: Part[Options], about: str | None, *, unscaled: Draw | None = None) -> None:
    """Runs one study and draws its figures; with --draw only the figures, from the rows and pictures in --out.

    ``unscaled`` draws the figures of the variant whose logits are not divided, where the study has one.
    """
    parser = runner.parser(about, out=RESULTS)
    parser.add_argument("--images", type=int, help="how many images, instead of the study's own number")
    parser.add_argument("--first", type=int, help="only so many cases; the others wait (batches.py)")
    parser.add_argument("--draw", action="store_true", help="only draw the figures, from the results in --out")
    if unscaled is not None:
        parser.add_argument(
            "--unscaled", action="store_true", help="logits not divided by √d; rows go to NAME_unscaled.jsonl"
        )
    given = parser.parse_args()
    more = {"images": given.images, "first": given.first, "unscaled": unscaled is not None and given.unscaled}
    if more["unscaled"]:
        part = replace(part, name=f"{part.name}{UNSCALED}", draw=unscaled)
    if given.draw:
        draw_part(part, given.out)
    else:
        run_part(part, Options.of(given, **more))
