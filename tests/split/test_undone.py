"""First layers that can be undone are undone at every size: a scan must not take them for protection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.audit.case import Case
from leakgauge.audit.questions.split import Asked, ScanRun, plan_scan
from leakgauge.audit.session import Setup
from leakgauge.core import Pixels, Victim
from leakgauge.defenses import GaussianNoise
from leakgauge.split.inverters import LOCAL_RIDGE, LinearInverter, RidgeInverter
from leakgauge.split.scan import Images, scan
from leakgauge.split.whitebox import WhiteBox

SIDES = (28, 64, 128, 224)


class Permuted(nn.Module):
    """Pixels in another order, the same one for every image."""

    order: Tensor

    def __init__(self, side: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(3 * side * side, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, self.order].view_as(x)


class Flipped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


class Copied(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0


def turned(side: int) -> nn.Module:
    layer = nn.Conv2d(3, 3, 1, bias=False)
    nn.init.orthogonal_(layer.weight.data.view(3, 3))
    return layer


def strided(side: int) -> nn.Module:
    return nn.Conv2d(3, 32, 3, stride=2, padding=1)


def rectified(side: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False), nn.ReLU())


FIRST = {
    "identity": lambda side: Copied(),
    "pad": lambda side: nn.ZeroPad2d((0, 1, 0, 1)),
    "flip": lambda side: Flipped(),
    "permutation": Permuted,
    "orthogonal": turned,
}


def cut_after(first: nn.Module, side: int) -> Victim:
    torch.manual_seed(0)
    rest = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(4))
    model = nn.Sequential(first, rest)
    model(torch.rand(1, 3, side, side))
    return Victim(model, Pixels((3, side, side), mean=(0.4,) * 3, std=(0.3,) * 3))


def pictures(count: int, side: int, seed: int) -> Images:
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 7, 7, generator=rng)
    fine = torch.rand(count, 3, side, side, generator=rng)
    return Images((0.8 * F.interpolate(coarse, size=(side, side), mode="bilinear") + 0.2 * fine).clamp(0, 1))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("first", FIRST)
def test_a_first_layer_with_an_inverse_is_undone(first: str, side: int):
    torch.manual_seed(1)
    victim = cut_after(FIRST[first](side), side)
    row, made = WhiteBox()(victim, "0", pictures(50, side, 0), pictures(4, side, 1), flops=10**8)
    assert row.refusal == ""
    assert row.psnr > 60
    assert row.reidentified == 1
    assert made is not None
    assert row.tested == len(made)


@pytest.mark.parametrize("side", [28, 128])
@pytest.mark.parametrize("first", FIRST)
def test_a_whole_scan_does_not_recommend_it(first: str, side: int, tmp_path: Path):
    torch.manual_seed(1)
    data = pictures(64, side, 0).images
    setup = Setup(cut_after(FIRST[first](side), side), data, torch.zeros(len(data), dtype=torch.long))
    plan = plan_scan(setup, Case(model=first), Asked(epochs=0, names=("0",)), tmp_path, command="leakgauge scan")
    found = ScanRun(setup, plan, tmp_path)()
    assert (found.recommended, found.candidate) == (None, None)


@pytest.mark.parametrize("side", [28, 64])
@pytest.mark.parametrize(("first", "least"), [(strided, 40), (rectified, 25)])
def test_a_strided_convolution_is_undone_by_least_squares(first: Callable[[int], nn.Module], least: float, side: int):
    torch.manual_seed(1)
    row, _ = WhiteBox()(cut_after(first(side), side), "0", pictures(50, side, 0), pictures(4, side, 1), flops=10**8)
    assert row.psnr > least


def test_patches_learn_the_identity_where_whole_images_cannot():
    victim = cut_after(nn.ZeroPad2d((0, 1, 0, 1)), 64)
    parts = pictures(60, 64, 0), pictures(10, 64, 1)
    (whole,) = scan(victim, *parts, ["0"], inverter=RidgeInverter()).rows
    (better,) = scan(victim, *parts, ["0"], inverter=LinearInverter()).rows
    assert whole.fvu > 0.25  # by this alone the copy would be called safe
    assert better.fvu < 0.01
    assert (whole.by, better.by) == ("ridge", LOCAL_RIDGE)


def test_noise_is_not_undone():
    parts = pictures(50, 28, 0), pictures(4, 28, 1)
    row, _ = WhiteBox()(cut_after(Copied(), 28), "0", *parts, defenses=[GaussianNoise(relative=3.0)])
    assert row.psnr < 20


def test_the_work_is_bounded():
    attack = WhiteBox()
    assert attack.within(0) == (8, attack.solver)
    count, solver = attack.within(4 * 10**9)
    assert (count, solver.steps) == (2, 1)
