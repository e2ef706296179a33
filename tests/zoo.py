"""Small models that several tests share; where the exact network does not matter, one of these is fast enough."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.models.seeded import seeded


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class SmallResNet(nn.Module):
    """A stem, two stages of two residual blocks and a linear head, with the names of ResNet-18."""

    def __init__(self, *, width: int = 4, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.layer1 = nn.Sequential(_Block(width), _Block(width))
            self.layer2 = nn.Sequential(_Block(width), _Block(width))
            self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class SmallDetector(nn.Module):
    """One box and the scores of three classes for each image of 3 × 64 × 64."""

    def __init__(self, *, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        with seeded(seed):
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4, padding=1), nn.BatchNorm2d(4), nn.SiLU())
            self.head = nn.Linear(4 * 16 * 16, 4 + classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


def box_loss(output: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    """Of a list of objects, each with its ``boxes``, ``classes`` and the number of its ``image``."""
    found = output[targets["image"]]
    return F.l1_loss(found[:, :4], targets["boxes"] / 64) + F.cross_entropy(found[:, 4:], targets["classes"])
