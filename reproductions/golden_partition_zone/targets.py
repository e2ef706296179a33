"""Training of the attacked networks, and a shelf that keeps them so that no part trains one twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from splits import Part, Splits, as_input, in_bfloat16
from torch import Tensor, nn

from leakgauge.models import IR152, VGG19, SplitViT
from leakgauge.split.smoothing import CodeSmoothing, Smoothing

LABELS: dict[str, Smoothing] = {"one-hot": CodeSmoothing(0.0), "LS+": CodeSmoothing(0.3), "LS-": CodeSmoothing(-0.05)}
"""The paper's three kinds of labels, in the convention of its released code."""

NETWORKS: dict[str, Callable[..., VGG19 | IR152 | SplitViT]] = {"vgg19": VGG19, "ir152": IR152, "vit": SplitViT}
EPOCHS = {"vgg19": 40, "ir152": 40, "vit": 100}
WEIGHT_DECAY = {"vgg19": 5e-4, "ir152": 5e-4, "vit": 1e-4}
RATE = 3e-4

Watch = Callable[[int, nn.Module], None]


@dataclass(frozen=True)
class Target:
    """A trained network and how it does on the test part."""

    model: nn.Module
    accuracy: float
    seconds: float

    def cut(self, block: int) -> str:
        assert isinstance(self.model, VGG19 | IR152 | SplitViT)
        return self.model.cut(block)


@dataclass(frozen=True)
class Shelf:
    """Trains a network, or takes it from the folder if it was trained before."""

    folder: Path
    device: torch.device
    batch: int
    epochs: int | None = None

    def get(self, network: str, splits: Splits, labels: str, seed: int, *, watch: Watch | None = None) -> Target:
        name = f"{network}-{splits.name}-{labels}-{seed}".replace(" ", "-").replace(",", "")
        file = self.folder / f"{name}.pt"
        model = NETWORKS[network](in_channels=splits.channels, classes=splits.classes, seed=seed).to(self.device)
        if file.is_file():
            stored = torch.load(file, map_location=self.device, weights_only=True)
            model.load_state_dict(stored["state"])
            return Target(model.eval(), stored["accuracy"], stored["seconds"])
        epochs = self.epochs or EPOCHS[network]
        began = time.perf_counter()
        train(
            model, splits.train, loss=LABELS[labels], epochs=epochs, batch=self.batch, seed=seed, watch=watch,
            weight_decay=WEIGHT_DECAY[network],
        )  # fmt: skip
        seconds, hits = time.perf_counter() - began, accuracy(model, splits.test)
        self.folder.mkdir(parents=True, exist_ok=True)
        torch.save({"state": model.state_dict(), "accuracy": hits, "seconds": seconds}, file)
        return Target(model.eval(), hits, seconds)


def train(
    model: nn.Module,
    part: Part,
    *,
    loss: Smoothing,
    epochs: int,
    batch: int,
    seed: int,
    weight_decay: float = 5e-4,
    watch: Watch | None = None,
) -> None:
    """Adam 3e-4 with coupled L2, cosine schedule, flipped and rolled images, bfloat16: like the paper's, not the same.

    The paper states Adam 3e-4 and a plateau schedule; weight decay is from the released code, the rest is ours.
    """
    device, count = part.labels.device, len(part.labels)
    rng = torch.Generator(device).manual_seed(seed)
    steps = max(1, count // batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)  # dropout
        for epoch in range(epochs):
            model.train()
            order = torch.randperm(count, generator=rng, device=device)
            for rows in order[: steps * batch].split(batch):
                x = as_input(augmented(part.images[rows], rng))
                with in_bfloat16(device):
                    logits = model(x)
                value = loss(logits.float(), part.labels[rows])
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
                schedule.step()
            if watch is not None:
                watch(epoch + 1, model.eval())


def augmented(images: Tensor, rng: torch.Generator) -> Tensor:
    """Every image mirrored with probability ½ and rolled by up to an eighth of its side, each by its own draw."""
    count, _, height, width = images.shape
    reach = height // 8
    down, across = torch.randint(-reach, reach + 1, (2, count, 1), generator=rng, device=images.device)
    rows = (torch.arange(height, device=images.device) + down) % height
    columns = (torch.arange(width, device=images.device) + across) % width
    mirrored = torch.rand(count, 1, generator=rng, device=images.device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    every = torch.arange(count, device=images.device)[:, None, None]
    return images[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


@torch.no_grad()
def accuracy(model: nn.Module, part: Part) -> float:
    model.eval()
    hits = 0
    for images, labels in zip(part.images.split(512), part.labels.split(512), strict=True):
        with in_bfloat16(images.device):
            hits += int((model(as_input(images)).argmax(1) == labels).sum())
    return hits / len(part.labels)
