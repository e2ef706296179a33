"""The four networks on which privacy tokens were proposed, with the features and gradients that were looked at.

Each class names its ``feature_layer`` (whose output stands for the data) and its ``gradient_layers`` (modules whose gradients
are looked at). The paper gives the kinds and numbers of layers; what it leaves open was chosen here and is marked *chosen*.

Ref: Meng et al. 2025, section 4.1 — LeNet, AlexNet, CNN and MLP
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

from torch import Tensor, nn

from leakgauge.models.seeded import seeded


class TokenLeNet(nn.Module):
    """Three convolutions with ReLU and one linear layer; 768 features, so the input is 32 × 32 (the paper says 64 × 64).

    *Chosen*: 5 × 5, 12 channels, strides 2, 2, 1 as in the LeNet of gradient inversion, which gives those 768.
    """

    feature_layer: ClassVar[str] = "body"
    gradient_layers: ClassVar[tuple[str, ...]] = ("body.0", "body.2", "body.4")

    def __init__(self, *, in_channels: int = 3, side: int = 32, classes: int = 10, seed: int = 0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        with seeded(seed):
            channels = in_channels
            for stride in (2, 2, 1):
                layers += [nn.Conv2d(channels, 12, 5, stride, 2), nn.ReLU()]
                channels, side = 12, (side - 1) // stride + 1
            self.body = nn.Sequential(*layers)
            self.fc = nn.Linear(12 * side * side, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).flatten(1))


class TokenAlexNet(nn.Module):
    """Five convolutions with ReLU and max-pooling, adaptive average pooling (the features), three linear layers.

    Widths and strides are those of the usual single-GPU AlexNet, which takes 64 × 64 and larger. The paper names no dropout.
    ``hidden`` is the width of the linear layers, to be made small for a trial.
    Its gradients of the last three convolutions have 2 139 008 values: give the monitor a sketch.
    """

    feature_layer: ClassVar[str] = "pool"
    gradient_layers: ClassVar[tuple[str, ...]] = ("body.6", "body.8", "body.10")

    def __init__(self, *, in_channels: int = 3, classes: int = 10, hidden: int = 4096, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.body = nn.Sequential(
                nn.Conv2d(in_channels, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
                nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
                nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
                nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
                nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
            )  # fmt: skip
            self.pool = nn.AdaptiveAvgPool2d(6)
            self.head = nn.Sequential(
                nn.Linear(256 * 36, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
            )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(x)).flatten(1))


class TokenCNN(nn.Module):
    """Two convolutions with ReLU and max-pooling, a linear layer for the embedding (the features) and one to classify.

    *Chosen*: 16 and 32 channels, 3 × 3, pooling after each, an embedding of 128.
    """

    feature_layer: ClassVar[str] = "embedding"
    gradient_layers: ClassVar[tuple[str, ...]] = ("body.0", "body.3")

    def __init__(self, *, in_channels: int = 3, side: int = 64, classes: int = 2, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.body = nn.Sequential(
                nn.Conv2d(in_channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            )  # fmt: skip
            self.embedding = nn.Linear(32 * (side // 4) ** 2, 128)
            self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(self.body(x).flatten(1)).relu())


class TokenMLP(nn.Module):
    """Four linear layers with ReLU between them; the output of the second is the embedding, all gradients are looked at.

    *Chosen*: widths 512, 256, 128.
    """

    feature_layer: ClassVar[str] = "body.3"
    gradient_layers: ClassVar[tuple[str, ...]] = ("body.0", "body.2", "body.4", "head")

    def __init__(self, *, shape: tuple[int, ...] = (3, 64, 64), classes: int = 2, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.body = nn.Sequential(
                nn.Linear(prod(shape), 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
            )
            self.head = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)))
