"""ResNet-18 in its two orders: activation after the addition (2015) and before the convolutions (2016)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded

Stem = Literal["cifar", "imagenet"]


class ResNet18(nn.Module):
    """Four stages of two blocks. ``pre_activation`` swaps the order inside the blocks; nothing else changes.

    ``stem`` is the input layer: ``"cifar"`` keeps the size (3 × 3, stride 1), ``"imagenet"`` divides it by four
    (7 × 7, stride 2, then a max-pool). ``width`` is the number of channels of the first stage.

    Ref: He et al. 2015, *Deep Residual Learning*; He et al. 2016, *Identity Mappings in Deep Residual Networks*.
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        classes: int = 10,
        stem: Stem = "cifar",
        width: int = 64,
        pre_activation: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if stem not in ("cifar", "imagenet"):
            raise BadInput(f"ResNet18 needs a stem 'cifar' or 'imagenet', got {stem!r}")
        block = PreActivationBlock if pre_activation else Block
        with seeded(seed):
            if stem == "cifar":
                self.conv1 = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
                self.maxpool = nn.Identity()
            else:
                self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
                self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
            # pre-activation blocks bring their own first norm, and leave the last one to the network
            self.bn1 = nn.Identity() if pre_activation else nn.BatchNorm2d(width)
            self.relu = nn.Identity() if pre_activation else nn.ReLU()
            self.layer1 = nn.Sequential(block(width, width, 1), block(width, width, 1))
            self.layer2 = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width, 1))
            self.layer3 = nn.Sequential(block(2 * width, 4 * width, 2), block(4 * width, 4 * width, 1))
            self.layer4 = nn.Sequential(block(4 * width, 8 * width, 2), block(8 * width, 8 * width, 1))
            self.norm = nn.Sequential(nn.BatchNorm2d(8 * width), nn.ReLU()) if pre_activation else nn.Identity()
            self.avgpool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(8 * width, classes)
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(self.norm(x)).flatten(1))


class Block(nn.Module):
    """conv, norm, ReLU, conv, norm; then addition and ReLU."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = nn.Sequential()
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class PreActivationBlock(nn.Module):
    """norm, ReLU, conv, norm, ReLU, conv; then addition, so that the identity path stays free.

    Where the size changes, the shortcut is a convolution of the activated input.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride != 1 or channels != width:
            self.downsample = nn.Conv2d(channels, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.relu(self.bn1(x))
        shortcut = x if self.downsample is None else self.downsample(active)
        return self.conv2(self.relu(self.bn2(self.conv1(active)))) + shortcut
