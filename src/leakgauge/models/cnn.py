"""A small convolutional network: cheap to attack on a laptop, deep enough to classify well."""

from __future__ import annotations

from torch import Tensor, nn

from leakgauge.models.seeded import seeded


class CNN(nn.Module):
    """Three 3 × 3 convolutions with batch normalisation and ReLU, then one linear layer.

    Strides instead of pooling keep the gradients dense, so inversion attacks have something to match.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        side: int = 28,
        classes: int = 10,
        widths: tuple[int, ...] = (32, 64, 64),
        strides: tuple[int, ...] = (1, 2, 2),
        seed: int = 0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        with seeded(seed):
            channels = in_channels
            for width, stride in zip(widths, strides, strict=True):
                layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                channels, side = width, (side - 1) // stride + 1
            self.features = nn.Sequential(*layers)
            self.head = nn.Linear(channels * side * side, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))
