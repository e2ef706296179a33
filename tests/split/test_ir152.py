"""The paper's IR-152 at 64 x 64: which of its nodes are cuts, and the edge's share of the parameters at its blocks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.core import Pixels, Victim
from leakgauge.split import cuts

SHARES = {3: 0.24, 8: 2.2, 25: 28.4, 40: 56.9, 48: 72.1, 49: 78.03, 50: 85.6, 51: 93.2}  # %, block 1 is the stem
SHAPES = {3: (64, 32, 32), 8: (128, 16, 16), 25: (256, 8, 8), 48: (256, 8, 8), 49: (512, 4, 4), 51: (512, 4, 4)}


class Unit(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        if inside == width:
            self.shortcut: nn.Module = nn.MaxPool2d(1, stride)
        else:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        self.body = nn.Sequential(
            nn.BatchNorm2d(inside), nn.Conv2d(inside, width, 3, 1, 1, bias=False), nn.PReLU(width),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x):
        return self.shortcut(x) + self.body(x)


class IR152(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.PReLU(64))
        units, inside = [], 64
        for width, count in ((64, 3), (128, 8), (256, 36), (512, 3)):
            for k in range(count):
                units.append(Unit(inside, width, 2 if k == 0 else 1))
                inside = width
        self.units = nn.Sequential(*units)
        self.head = nn.Sequential(
            nn.BatchNorm2d(512),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(8192, 512),
            nn.BatchNorm1d(512),
            nn.Linear(512, 10),
        )

    def forward(self, x):
        return self.head(self.units(self.stem(x)))


@pytest.fixture(scope="module")
def every():
    with torch.device("meta"):
        model = IR152()
    model.to_empty(device="cpu")  # counted and run, never trained: any weights will do
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.fill_(0.01 if value.is_floating_point() else 0)
    victim = Victim(model, Pixels((3, 64, 64)))
    return cuts(victim, multi_tensor=True)


def test_which_nodes_are_cuts_of_one_tensor(every):
    single = [cut for cut in every if cut.single]
    assert len(single) == 3 + 50 + 6  # stem, units, head; the input itself would be the sixtieth
    assert max(len(cut.tensors) for cut in every) == 2
    assert single[-1].edge_parameters == pytest.approx(62.09e6, abs=5e3)


@pytest.mark.parametrize("block", SHARES)
def test_share_of_the_parameters(block, every):
    names = {alias: cut for cut in every for alias in (cut.name, *cut.aliases)}
    cut = names[f"units.{block - 2}"]
    assert cut.single
    digits = 2 if block in (3, 49) else 1
    assert round(100 * cut.edge_share, digits) == SHARES[block]
    assert cut.tensors[0].shape == SHAPES.get(block, cut.tensors[0].shape)
