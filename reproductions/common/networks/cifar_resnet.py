"""The small residual networks for CIFAR-10 of the first ResNet paper, with shortcuts that have no parameters."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakgauge.core import Pixels
from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class CifarResNet(nn.Module):
    """6n + 2 layers: three stages of n blocks with 16, 32 and 64 channels. Depth 20 is ResNet-20, depth 56 ResNet-56.

    Where size and channels change, the shortcut takes every other pixel and pads the new channels with zeros (option A).

    Ref: He et al. 2015, section 4.2 — residual networks for CIFAR-10
    """

    def __init__(self, *, depth: int = 20, classes: int = 10, width: int = 16, seed: int = 0) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise BadInput(f"CifarResNet needs a depth of 6n + 2 such as 20 or 56, got {depth}")
        blocks = (depth - 2) // 6
        with seeded(seed):
            self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.layer1 = _stage(width, width, blocks)
            self.layer2 = _stage(width, 2 * width, blocks)
            self.layer3 = _stage(2 * width, 4 * width, blocks)
            self.linear = nn.Linear(4 * width, classes)
            for module in self.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """What enters the classifier, (B, 4 · width)."""
        x = F.relu(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean((2, 3))


def _stage(channels: int, width: int, blocks: int) -> nn.Sequential:
    first = PaddedBlock(channels, width, 1 if channels == width else 2)
    return nn.Sequential(first, *(PaddedBlock(width, width, 1) for _ in range(blocks - 1)))


class PaddedBlock(nn.Module):
    """conv, norm, ReLU, conv, norm; then addition of the input, subsampled and padded where needed, and ReLU."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.padding = stride, (width - channels) // 2

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(out + x)


def load_cifar_resnet(path: str | Path) -> tuple[CifarResNet, Pixels]:
    """A trained network from a safetensors file, its depth read from the names in it, and the images it takes.

    The public ones were trained on images normalised by ImageNet's mean and deviation.
    """
    if not Path(path).is_file():
        raise BadInput(f"there is no weights file {path}; give a local .safetensors file")
    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise BadInput(f"{path} is no safetensors file: {error}") from error
    blocks = len({name.split(".")[1] for name in stored if name.startswith("layer1.")})
    if not blocks or "linear.weight" not in stored:
        raise BadInput(f"{path} holds no CIFAR ResNet: expected layer1.0.conv1.weight … linear.weight")
    classes, features = stored["linear.weight"].shape
    model = CifarResNet(depth=6 * blocks + 2, classes=classes, width=features // 4)
    lacking = model.load_state_dict(stored, strict=False)
    missing = [name for name in lacking.missing_keys if not name.endswith("num_batches_tracked")]
    if missing or lacking.unexpected_keys:
        raise BadInput(f"the weights in {path} do not fit: first {(missing + lacking.unexpected_keys)[0]}")
    return model.eval(), Pixels((3, 32, 32), mean=IMAGENET_MEAN, std=IMAGENET_STD)
