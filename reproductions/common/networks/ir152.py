"""IR-152, the residual network of face recognition, for 64 × 64 images."""

from __future__ import annotations

from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded

UNITS = (3, 8, 36, 3)
WIDTHS = (64, 128, 256, 512)
"""Units and widths of the four stages; the first unit of each halves the side."""

BLOCKS = (3, 8, 25, 40, 48, 49, 50, 51)
"""The blocks at which the paper cuts."""


class IR152(nn.Module):
    """A 3 × 3 stem, 50 residual units in four stages, and a head that flattens what is left.

    Block 1 of the paper is the stem and blocks 2 to 51 are the units; here they are ``blocks.1`` to ``blocks.51``
    (see :meth:`cut`). ``units`` and ``widths`` exist for small copies.

    Ref: Liu and Zhu 2025, Table 2 — IR-152 and the sizes at its cuts
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        side: int = 64,
        classes: int = 10,
        units: tuple[int, ...] = UNITS,
        widths: tuple[int, ...] = WIDTHS,
        embedding: int = 512,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if len(units) != len(widths) or side % 2 ** len(units):
            raise BadInput(
                f"IR152 needs a width per stage and a side that halves in each of them, got {units}, {widths}, {side}"
            )
        with seeded(seed):
            stem = nn.Sequential(
                nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False),
                nn.BatchNorm2d(widths[0]),
                nn.PReLU(widths[0]),
            )
            self.blocks = nn.Sequential()
            self.blocks.add_module("1", stem)
            channels = widths[0]
            for count, width in zip(units, widths, strict=True):
                for position in range(count):
                    self.blocks.add_module(
                        str(len(self.blocks) + 1), Unit(channels, width, stride=1 if position else 2)
                    )
                    channels, side = width, side if position else side // 2
            self.head = nn.Sequential(
                nn.BatchNorm2d(channels),
                nn.Dropout(0.5),
                nn.Flatten(),
                nn.Linear(channels * side * side, embedding),
                nn.BatchNorm1d(embedding),
                nn.Linear(embedding, classes),
            )
            for module in self.modules():
                if isinstance(module, nn.Conv2d | nn.Linear):
                    nn.init.xavier_uniform_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))

    def cut(self, block: int) -> str:
        """Name of the layer whose output the paper's ``block`` sends."""
        if not 1 <= block <= len(self.blocks):
            raise BadInput(f"this network has the blocks 1 to {len(self.blocks)}, got {block}")
        return f"blocks.{block}"


class Unit(nn.Module):
    """norm, conv, PReLU, conv with stride, norm; plus a shortcut. Nothing follows the addition.

    The shortcut takes every ``stride``-th pixel where the width stays, else it is a 1 × 1 convolution with norm.
    """

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        if channels == width:
            self.shortcut: nn.Module = nn.MaxPool2d(1, stride)
        else:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.residual = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.PReLU(width),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.residual(x) + self.shortcut(x)
