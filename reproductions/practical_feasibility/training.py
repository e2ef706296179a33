"""Trains one network on 32×32 images within a number of seconds: bfloat16, channels last, one learning-rate cycle."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Pixels

BATCH = 512


@dataclass(frozen=True)
class Trained:
    accuracy: float
    epochs: int
    images: int
    seconds: float


def trained(
    model: nn.Module,
    space: Pixels,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    seconds: float,
    device: torch.device,
    most_epochs: int = 60,
    seed: int = 0,
    batch: int = BATCH,
) -> Trained:
    """Trains ``model`` in place. How many epochs fit into ``seconds`` is measured on a copy before the start.

    Networks with batch normalisation learn by SGD with momentum, the others by AdamW. Images (in [0, 1]) are shifted by up to 4
    pixels, mirrored, and lose a square of 8×8; labels are smoothed by 0.1.
    """
    began = time.perf_counter()
    model.to(device).train()
    _laid_out(model, torch.channels_last)
    x, y = space.encode(train[0].to(device)), train[1].to(device)
    batch = min(batch, len(x))
    in_epoch = len(x) // batch
    per_step = _measured(model, x, y, device, batch, seed)
    epochs = max(1, min(most_epochs, int(seconds / (per_step * in_epoch))))
    loop = _Loop(model, device, steps=max(2, epochs * in_epoch), seed=seed)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=loop.rng, device=device)
        for at in range(0, in_epoch * batch, batch):
            loop.step(x[order[at : at + batch]], y[order[at : at + batch]])
    model.eval()
    right = 0
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for images, labels in zip(test[0].split(batch), test[1].split(batch), strict=True):
            right += int((model(space.encode(images.to(device))).argmax(1).cpu() == labels).sum())
    _laid_out(model, torch.contiguous_format)
    return Trained(right / len(test[0]), epochs, len(x), time.perf_counter() - began)


def _laid_out(model: nn.Module, layout: torch.memory_format) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=layout)


class _Loop:
    def __init__(self, model: nn.Module, device: torch.device, *, steps: int, seed: int) -> None:
        self.model, self.device = model, device
        self.rng = torch.Generator(device=device).manual_seed(seed)
        batch_norm = any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
        decayed = [p for p in model.parameters() if p.dim() > 1]
        groups = [
            {"params": decayed, "weight_decay": 5e-4 if batch_norm else 0.05},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ]
        if batch_norm:
            self.optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, lr=0.4, momentum=0.9, nesterov=True)
        else:
            self.optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=device.type == "cuda")
        peak = 0.4 if batch_norm else 1e-3
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, peak, steps, pct_start=0.25, cycle_momentum=False
        )

    def step(self, x: Tensor, y: Tensor) -> None:
        x = shaken(x, self.rng).contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = F.cross_entropy(self.model(x).float(), y, label_smoothing=0.1)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.schedule.step()


def _measured(model: nn.Module, x: Tensor, y: Tensor, device: torch.device, batch: int, seed: int) -> float:
    """Seconds of one step, on a copy of the model."""
    loop = _Loop(copy.deepcopy(model), device, steps=1000, seed=seed)
    count = 12 if device.type == "cuda" else 1
    for _ in range(4 if device.type == "cuda" else 0):
        loop.step(x[:batch], y[:batch])
    began = _now(device)
    for _ in range(count):
        loop.step(x[:batch], y[:batch])
    return (_now(device) - began) / count


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def shaken(x: Tensor, rng: torch.Generator) -> Tensor:
    """Each image (N, C, H, W) shifted by -4 to 4 pixels with zeros coming in, mirrored or not, and with an 8×8 hole."""
    count, _, height, width = x.shape
    device = x.device
    shift = torch.randint(0, 9, (2, count), generator=rng, device=device)
    rows = shift[0][:, None] + torch.arange(height, device=device)
    columns = shift[1][:, None] + torch.arange(width, device=device)
    mirrored = torch.rand(count, generator=rng, device=device) < 0.5
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = F.pad(x, (4, 4, 4, 4)).permute(0, 2, 3, 1)
    which = torch.arange(count, device=device)[:, None, None]
    moved = padded[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    corner = torch.randint(0, height - 7, (2, count, 1), generator=rng, device=device)
    down, across = (
        torch.arange(size, device=device)[None] - at for size, at in zip((height, width), corner, strict=True)
    )
    hole = ((down >= 0) & (down < 8))[:, :, None] & ((across >= 0) & (across < 8))[:, None, :]
    return moved.masked_fill(hole[:, None], 0.0)
