"""The four experiments of the privacy-token paper: network, data, training schedule and attack, and a small one to try out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.attacks import dlg, inverting_gradients
from leakgauge.core import Pixels, Signal
from leakgauge.data import fashion
from leakgauge.errors import BadInput
from leakgauge.inversion import LBFGS, Adam, Descent, Matching, StepDecay
from leakgauge.monitor.paper import PaperSchedule, Reading, Shuffle, TokenCriticFit
from reproductions.common.networks.privacy_tokens import TokenAlexNet, TokenCNN, TokenLeNet, TokenMLP
from reproductions.common.sheets import CIFAR_SPACE, sheets

Shape = tuple[int, int, int]
Run = tuple[str, Reading, Shuffle]
"""A token, when its critic is trained, and among which pairs a mismatched gradient is drawn."""
Data = tuple[Tensor, Tensor]

FACES = PaperSchedule(
    sub_epochs=100, iterations=10, lr=1e-4, decay_every=10, checkpoints=(0, 1, 5, 10, 20, 50, 100), evaluation=200
)
CIFAR = PaperSchedule()
BOTH: tuple[Run, ...] = tuple(
    (token, "once", shuffle) for shuffle in ("sub_epoch", "all") for token in ("transformer", "autoencoder")
)
"""Within a sub-epoch is Algorithm 1 as it is written."""
FRESH: Run = ("transformer", "fresh", "sub_epoch")
WARM: tuple[Run, ...] = tuple((token, "warm", "sub_epoch") for token in ("transformer", "autoencoder"))
TRAIN_IMAGES = 20_000
ORDER = 20_260
"""Seed of the order in which faces are taken: their file is sorted by label."""
SUBSTITUTES = (
    "smiling faces 64 × 64, grey, in place of CelebA-HQ; inverting_gradients in place of the diffusion-guided attack"
)
MANY_DLG = "DLG's objective by Adam for many targets at once; its own L-BFGS for one target"


def dlg_by_adam(steps: int) -> Matching:
    """DLG's objective, joint labels and normal start, but moved by Adam: all targets in one batch, where L-BFGS goes one by one."""
    return replace(dlg(), solver=Descent(Adam(0.1), steps, schedule=StepDecay()), name="dlg by Adam")


@dataclass(frozen=True)
class Setup:
    """One row block of the paper's Table 1: what is trained on which data, and how much is measured at each checkpoint.

    ``attack`` goes at ``targets`` images at once, ``single`` (if any) at the first of them alone, as the paper does.
    A gradient is identified among those of ``candidates`` batches; the decoder is tried on ``probes`` batches, each among ``others``
    times as many other samples.
    """

    make: Callable[[int], nn.Module]
    feature_layer: str
    gradient_layers: tuple[str, ...]
    shape: Shape
    classes: int
    data: str
    schedule: PaperSchedule
    attack: Matching
    single: Matching | None = None
    sketched: bool = False
    runs: tuple[Run, ...] = (*BOTH, FRESH)
    normalised: bool = False
    """Whether the network takes images less CIFAR-10's mean, over its deviation."""
    least_accuracy: float = 0.0
    """Below this at the end the network counts as dead, and the next seed is tried."""
    critic: TokenCriticFit = field(default_factory=TokenCriticFit)
    batch_sizes: tuple[int, ...] = (10, 40)
    targets: int = 12
    candidates: int = 64
    probes: int = 5
    others: int = 9
    notes: tuple[str, ...] = ()

    @property
    def space(self) -> Pixels:
        return Pixels(self.shape, **CIFAR_SPACE) if self.normalised else Pixels(self.shape)


def _of(network: type[TokenLeNet | TokenAlexNet | TokenCNN | TokenMLP], shape: Shape, **options: Any) -> Setup:
    given: dict[str, Any] = {"in_channels": shape[0]} if network is not TokenMLP else {"shape": shape}
    if network in (TokenLeNet, TokenCNN):
        given["side"] = shape[1]
    if network is TokenAlexNet:
        given["hidden"] = options.pop("hidden", 4096)
    return Setup(
        make=lambda seed: network(seed=seed, **given),
        feature_layer=network.feature_layer,
        gradient_layers=network.gradient_layers,
        shape=shape,
        classes=10 if network in (TokenLeNet, TokenAlexNet) else 2,
        **options,
    )


SETUPS: dict[str, Setup] = {
    "lenet": _of(
        TokenLeNet,
        (3, 32, 32),
        data="cifar10",
        schedule=CIFAR,
        attack=dlg_by_adam(2000),
        single=dlg(steps=60),
        notes=(MANY_DLG,),
    ),
    "alexnet": _of(
        TokenAlexNet,
        (3, 64, 64),
        data="cifar10",
        schedule=replace(CIFAR, checkpoints=(0, 5, 15, 30, 50, 120, 200)),
        attack=dlg_by_adam(600),
        single=dlg(steps=30),
        sketched=True,
        runs=BOTH,
        normalised=True,
        least_accuracy=0.45,
        notes=(
            "images less their mean, over their deviation",
            "CIFAR-10 enlarged to 64 × 64 as the paper says; gradients sketched to 3 × 1024 values",
            MANY_DLG,
        ),
    ),
    "cnn": _of(
        TokenCNN,
        (1, 64, 64),
        data="faces",
        schedule=FACES,
        runs=(*BOTH, FRESH, *WARM),
        attack=inverting_gradients(steps=2000, tv=0.01),
        notes=(SUBSTITUTES,),
    ),
    "mlp": _of(
        TokenMLP,
        (1, 64, 64),
        data="faces",
        schedule=FACES,
        runs=(*BOTH, FRESH, *WARM),
        attack=inverting_gradients(steps=2000, tv=0.01),
        sketched=True,
        notes=(SUBSTITUTES, "gradients sketched to 4 × 1024 values"),
    ),
}


def quick(name: str) -> Setup:
    """The same experiment with embedded images and next to no steps: to see that everything runs, not to be compared."""
    of = SETUPS[name]
    shape = (1, 64, 64) if name == "alexnet" else (1, 28, 28)  # AlexNet takes nothing smaller
    big = name == "alexnet"
    steps = 2 if big else 4
    assert isinstance(of.attack.solver, Descent)
    small = PaperSchedule(
        sub_epochs=4, iterations=2 if big else 10, batch=8, checkpoints=(0, 1, 2, 4), evaluation=4 if big else 20
    )
    networks = {"lenet": TokenLeNet, "alexnet": TokenAlexNet, "cnn": TokenCNN, "mlp": TokenMLP}
    narrow = {"hidden": 64} if big else {}
    return _of(
        networks[name],
        shape,
        **narrow,
        data="",
        schedule=small,
        attack=replace(of.attack, solver=replace(of.attack.solver, steps=steps)),
        single=None if of.single is None else replace(dlg(), solver=LBFGS(steps=1, iterations=2)),
        sketched=of.sketched,
        runs=(*BOTH[2:], BOTH[0], ("transformer", "warm", "sub_epoch")),
        normalised=of.normalised and shape[0] == 3,
        critic=TokenCriticFit(steps=5),
        batch_sizes=(4, 16),
        targets=2,
        candidates=8,
        probes=1 if big else 2,
        others=1 if big else 4,
        notes=("embedded Fashion-MNIST, a few steps: to see that everything runs, not to be compared with the paper",),
    )


def data_for(setup: Setup, folder: Path | None) -> tuple[Data, Data]:
    """Training and held-out images in the network's own scale, with labels, in an order that says nothing of the labels.

    CIFAR-10: the first 20,000 training images, and test images. Faces are shuffled and a fifth is held out. Without a folder
    the embedded Fashion-MNIST samples.
    """
    if folder is not None and setup.data == "cifar10":
        names = [name for name in ("cifar10_train.zip", "cifar10_train_a.zip") if (folder / name).is_file()]
        if not names:
            raise BadInput(f"{folder} holds neither cifar10_train.zip nor cifar10_train_a.zip")
        train, held = sheets(folder / names[0], TRAIN_IMAGES), sheets(folder / "cifar10_test.zip", 2000)
    else:
        images, labels = fashion("train") if folder is None else sheets(folder / "smile_faces64_4000.zip")
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(ORDER))
        images, labels = images[order], labels[order] % setup.classes
        cut = len(images) * 4 // 5
        train, held = (images[:cut], labels[:cut]), (images[cut:], labels[cut:])
    return _fitted(setup, train), _fitted(setup, held)


def _fitted(setup: Setup, data: Data) -> Data:
    images, labels = data
    if images.shape[1] != setup.shape[0]:
        raise BadInput(
            f"{setup.shape[0]} channels are expected, the data has {images.shape[1]}; name other data with --data"
        )
    if images.shape[1:] != setup.shape:
        images = F.interpolate(images, setup.shape[1:], mode="bilinear", align_corners=False)
    return setup.space.encode(images), labels


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
