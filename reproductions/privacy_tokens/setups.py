"""The four experiments of the privacy-token paper: network, data, training schedule and attack, and a small one to try out."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from leakgauge.attacks import dlg, inverting_gradients
from leakgauge.core import Signal
from leakgauge.data import fashion, read
from leakgauge.errors import BadInput
from leakgauge.inversion import Matching
from leakgauge.models.privacy_tokens import TokenAlexNet, TokenCNN, TokenLeNet, TokenMLP
from leakgauge.monitor.paper import Schedule

Shape = tuple[int, int, int]
FACES = Schedule(
    sub_epochs=100, iterations=10, lr=1e-4, decay_every=10, checkpoints=(0, 1, 5, 10, 20, 50, 100), evaluation=200
)
CIFAR = Schedule()


@dataclass(frozen=True)
class Setup:
    """One row block of the paper's Table 1."""

    make: Callable[[int], nn.Module]
    feature_layer: str
    gradient_layers: tuple[str, ...]
    shape: Shape
    schedule: Schedule
    attack: Matching
    sketched: bool = False
    notes: tuple[str, ...] = ()


def _of(network: type[TokenLeNet | TokenAlexNet | TokenCNN | TokenMLP], shape: Shape, **options: object) -> Setup:
    given: dict[str, object] = {"in_channels": shape[0]} if network is not TokenMLP else {"shape": shape}
    if network in (TokenLeNet, TokenCNN):
        given["side"] = shape[1]
    schedule, attack = options.pop("schedule"), options.pop("attack")
    assert isinstance(schedule, Schedule)
    assert isinstance(attack, Matching)
    return Setup(
        make=lambda seed: network(seed=seed, **given),  # pyright: ignore[reportArgumentType]
        feature_layer=network.feature_layer,
        gradient_layers=network.gradient_layers,
        shape=shape,
        schedule=schedule,
        attack=attack,
        **options,  # pyright: ignore[reportArgumentType]
    )


SETUPS: dict[str, Setup] = {
    "lenet": _of(TokenLeNet, (3, 32, 32), schedule=CIFAR, attack=dlg(steps=100)),
    "alexnet": _of(
        TokenAlexNet,
        (3, 64, 64),
        schedule=replace(CIFAR, checkpoints=(0, 5, 15, 30, 50, 120, 200)),
        attack=dlg(steps=50),
        sketched=True,
        notes=("CIFAR-10 enlarged to 64 × 64 as the paper says; gradients sketched to 3 × 1024 values",),
    ),
    "cnn": _of(
        TokenCNN,
        (1, 64, 64),
        schedule=FACES,
        attack=inverting_gradients(steps=2000, tv=0.01),
        notes=(
            "smiling faces 64 × 64 in place of CelebA-HQ; inverting_gradients in place of the diffusion-guided attack",
        ),
    ),
    "mlp": _of(
        TokenMLP,
        (1, 64, 64),
        schedule=FACES,
        attack=inverting_gradients(steps=2000, tv=0.01),
        sketched=True,
        notes=(
            "smiling faces 64 × 64 in place of CelebA-HQ; inverting_gradients in place of the diffusion-guided attack",
        ),
    ),
}

QUICK = _of(
    TokenLeNet,
    (1, 28, 28),
    schedule=Schedule(sub_epochs=8, iterations=10, checkpoints=(0, 1, 2, 4, 8), evaluation=30),
    attack=dlg(steps=4),
    notes=(
        "embedded Fashion-MNIST, 8 sub-epochs of 10 steps: to see that everything runs, not to be compared with the paper",
    ),
)


def data_for(setup: Setup, path: Path | None) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] of the setup's shape and labels; without a path the embedded Fashion-MNIST samples."""
    if path is None:
        images, labels = fashion("train")
    elif path.suffix == ".zip":
        images, labels = sheets(path)
    else:
        images, labels = read(path)
    if images.shape[1] != setup.shape[0]:
        raise BadInput(
            f"{setup.shape[0]} channels are expected, the data has {images.shape[1]}; name other data with --data"
        )
    if images.shape[1:] != setup.shape:
        images = F.interpolate(images, setup.shape[1:], mode="bilinear", align_corners=False)
    return images, labels


def sheets(path: Path) -> tuple[Tensor, Tensor]:
    """Images and labels from a zip of square picture sheets of 10 × 10 (``sheet_*``) and ``labels.npy``."""
    found: list[np.ndarray] = []
    with zipfile.ZipFile(path) as archive:
        labels = np.load(io.BytesIO(archive.read("labels.npy")), allow_pickle=False)
        for name in sorted(n for n in archive.namelist() if n.startswith("sheet_")):
            sheet = np.asarray(Image.open(io.BytesIO(archive.read(name))))
            sheet = sheet[:, :, None] if sheet.ndim == 2 else sheet
            side = sheet.shape[0] // 10
            found.append(sheet.reshape(10, side, 10, side, -1).swapaxes(1, 2).reshape(100, side, side, -1))
    images = torch.from_numpy(np.concatenate(found)[: len(labels)]).permute(0, 3, 1, 2).float() / 255
    return images, torch.from_numpy(labels.astype(np.int64)).flatten()


@dataclass
class BucketSketch:
    """Each value of a layer's gradient is added, with a random sign, to one of ``width`` buckets: one row per layer."""

    width: int = 1024
    seed: int = 0
    _plan: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, signal: Signal) -> Tensor:
        rows: dict[str, Tensor] = {}
        for place, (name, value) in enumerate(signal.items()):
            layer = name.rpartition(".")[0]
            if name not in self._plan:
                rng = torch.Generator().manual_seed(self.seed + place)
                bucket = torch.randint(self.width, (value.numel(),), generator=rng)
                sign = 2.0 * torch.randint(2, (value.numel(),), generator=rng) - 1
                self._plan[name] = bucket.to(value.device), sign.to(value.device)
            bucket, sign = self._plan[name]
            row = rows.setdefault(layer, torch.zeros(self.width, device=value.device))
            row.index_add_(0, bucket, sign * value.flatten())
        return torch.stack(list(rows.values()))
