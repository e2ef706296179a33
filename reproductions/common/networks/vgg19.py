"""VGG-19 with batch normalisation for 64 × 64 images, numbered as the split-inference paper numbers it."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded

STAGES: tuple[tuple[int, ...], ...] = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
"""Widths of the 16 convolutions, stage by stage."""

BLOCKS = (13, 17, 26, 30, 39, 43, 52)
"""The blocks at which the paper cuts."""

Head = Literal["authors", "torchvision", "gap"]


class VGG19(nn.Module):
    """Sixteen 3 × 3 convolutions with batch normalisation and ReLU in five stages, each closed by a 2 × 2 max-pool.

    A *block* b of the paper is a slice end: ``features[:b]``, so its output is that of ``features[b - 1]``, always a ReLU
    (see :meth:`cut`). The ``head`` decides what share of the parameters an edge half holds: ``"authors"`` is the released
    code's 2048-4096-4096-classes with dropout .3 and .2, ``"torchvision"`` pools to 7 × 7 and has 25088-4096-4096-classes,
    ``"gap"`` is global average pooling and one linear layer.

    Ref: Liu and Zhu 2025, Table 2 — VGG19 and the sizes at its cuts
    """

    def __init__(
        self, *, in_channels: int = 3, side: int = 64, classes: int = 10, head: Head = "authors", seed: int = 0
    ) -> None:
        super().__init__()
        if side % 32:
            raise BadInput(f"VGG19 halves the side five times and needs a multiple of 32, got {side}")
        layers: list[nn.Module] = []
        with seeded(seed):
            channels = in_channels
            for widths in STAGES:
                for width in widths:
                    layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                    channels = width
                layers.append(nn.MaxPool2d(2))
            self.features = nn.Sequential(*layers)
            self.head = _head(head, channels, side // 32, classes)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def cut(self, block: int) -> str:
        """Name of the layer whose output the paper's ``block`` sends."""
        if not 1 <= block <= len(self.features):
            raise BadInput(f"VGG19 has the blocks 1 to {len(self.features)}, got {block}")
        return f"features.{block - 1}"


def _head(kind: Head, channels: int, side: int, classes: int) -> nn.Sequential:
    if kind == "gap":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    if kind not in ("authors", "torchvision"):
        raise BadInput(f"VGG19 needs a head 'authors', 'torchvision' or 'gap', got {kind!r}")
    drops = (0.3, 0.2) if kind == "authors" else (0.5, 0.5)
    pooled = side if kind == "authors" else 7
    layers: list[nn.Module] = [] if kind == "authors" else [nn.AdaptiveAvgPool2d(pooled)]
    width = channels * pooled * pooled
    layers.append(nn.Flatten())
    for drop in drops:
        layers += [nn.Linear(width, 4096), nn.ReLU(), nn.Dropout(drop)]
        width = 4096
    return nn.Sequential(*layers, nn.Linear(width, classes))
