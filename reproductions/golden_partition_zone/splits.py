"""The images of the study: bytes of 64 × 64 pixels that stay on the device, split once into three parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.data import fashion, read
from reproductions.common.gates import Gate
from reproductions.common.sheets import sheets

SIDE = 64
CIFAR = ("cifar10_test.zip", "cifar10_train_a.zip", "cifar10_train_b.zip")
"""All of CIFAR-10, in the order in which it is joined; a folder may hold other cuts of the same images beside them."""


@dataclass(frozen=True)
class Part:
    """Images (N, C, 64, 64) as bytes and their labels, both on one device."""

    images: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> Part:
        return Part(self.images[rows], self.labels[rows])

    def first(self, count: int) -> Part:
        return Part(self.images[:count], self.labels[:count])


@dataclass(frozen=True)
class Splits:
    """What the victim trains on, what the adversary owns, and what is attacked; no image is in two of them."""

    name: str
    train: Part
    auxiliary: Part
    test: Part
    classes: int

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]


def split(name: str, whole: Part, *, shares: tuple[float, float, float]) -> Splits:
    """A random split, the same for every seed of the study, into shares of train, auxiliary and test."""
    order = torch.randperm(len(whole.labels), generator=torch.Generator().manual_seed(0)).to(whole.labels.device)
    sizes = [round(share * len(order)) for share in shares]
    sizes[-1] = min(sizes[-1], len(order) - sum(sizes[:-1]))
    train, auxiliary, test = (whole.take(rows) for rows in order[: sum(sizes)].split(sizes))
    return Splits(name, train, auxiliary, test, int(whole.labels.max()) + 1)


def apart(splits: Splits) -> Gate:
    """No attacked image is also one that the victim trains on or that the adversary owns, byte for byte."""
    known = {hash(x.tobytes()) for part in (splits.train, splits.auxiliary) for x in part.images.cpu().numpy()}
    attacked = splits.test.images.cpu().numpy()
    twice = sum(hash(x.tobytes()) in known for x in attacked)
    return Gate("parts apart", not twice, f"{twice} of {len(attacked)} attacked images are trained on or owned")


def of_classes(splits: Splits, classes: int, *, total: int) -> Splits:
    """The first ``classes`` classes with ``total`` training images in all, a quarter of that for each other part."""

    def chosen(part: Part, count: int) -> Part:
        rows = [(part.labels == c).nonzero().flatten()[: count // classes] for c in range(classes)]
        return part.take(torch.cat(rows))

    name = f"{splits.name}, {classes} classes"
    parts = (chosen(splits.train, total), chosen(splits.auxiliary, total // 4), chosen(splits.test, total // 4))
    return Splits(name, *parts, classes=classes)


def load(path: Path, device: torch.device) -> Part:
    """Everything that the file holds, or of a folder the files of CIFAR-10, enlarged to 64 × 64. A zip holds sheets."""
    sources = [file for name in CIFAR if (file := path / name).is_file()]
    if sources and len(sources) < len(CIFAR):
        missing = sorted(set(CIFAR) - {file.name for file in sources})
        raise SystemExit(f"{path} lacks {', '.join(missing)}")
    sources = sources or [path]
    parts = [sheets(one) if one.suffix == ".zip" else read(one) for one in sources]
    images, labels = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
    return Part(enlarged(images, device), labels.to(device))


def embedded(count: int, device: torch.device, *, grey: bool = False) -> Part:
    """``count`` embedded images of Fashion-MNIST, as colour pictures unless ``grey``: for trying the scripts out."""
    images, labels = fashion("train")
    images = images[:count] if grey else images[:count].expand(-1, 3, -1, -1)
    return Part(enlarged(images, device), labels[:count].to(device))


def enlarged(images: Tensor, device: torch.device) -> Tensor:
    """Images in [0, 1] as bytes of 64 × 64 pixels on the device."""
    pieces = [
        F.interpolate(piece.to(device), size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True)
        for piece in images.split(2048)
    ]
    return torch.cat([(piece.clamp(0, 1) * 255).round().to(torch.uint8) for piece in pieces])


def in_bfloat16(device: torch.device) -> torch.autocast:
    """The precision of the networks on a GPU; a CPU computes in float32, which is faster there."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def as_input(images: Tensor) -> Tensor:
    """What the networks take: bytes to roughly −2 … 2; channels last on a GPU alone: torch 2.13 crashes on them on some CPUs."""
    x = images.to(torch.float32).div_(255).sub_(0.5).div_(0.25)
    return x.contiguous(memory_format=torch.channels_last if x.is_cuda else torch.contiguous_format)
