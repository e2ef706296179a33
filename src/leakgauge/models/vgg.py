"""A small VGG in which every layer has its own name, so a split scan can cut it anywhere."""

from __future__ import annotations

from torch import Tensor, nn

from leakgauge.models.seeded import seeded


class VGG(nn.Module):
    """Stages of 3 × 3 convolutions, each with batch normalisation and ReLU; each stage ends with a 2 × 2 max-pool.

    Convolutions keep the spatial size, so the feature size only changes at ``pool1``, ``pool2``, …
    Layers of ``features`` are named ``conv1_1``, ``bn1_1``, ``relu1_1``, …, ``pool1``, ``conv2_1`` and so on.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        side: int = 28,
        classes: int = 10,
        stages: tuple[tuple[int, ...], ...] = ((16, 16), (32, 32), (64, 64)),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential()
        channels = in_channels
        with seeded(seed):
            for i, widths in enumerate(stages, 1):
                for j, width in enumerate(widths, 1):
                    self.features.add_module(f"conv{i}_{j}", nn.Conv2d(channels, width, 3, padding=1, bias=False))
                    self.features.add_module(f"bn{i}_{j}", nn.BatchNorm2d(width))
                    self.features.add_module(f"relu{i}_{j}", nn.ReLU())
                    channels = width
                self.features.add_module(f"pool{i}", nn.MaxPool2d(2))
                side //= 2
            self.head = nn.Linear(channels * side * side, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))
