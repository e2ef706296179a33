"""Least squares without a matrix: exact on affine maps, one by one the same as together, with and without forward derivatives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.inversion import least_squares
from leakgauge.inversion.least_squares import LeastSquares, is_affine

RNG = torch.Generator().manual_seed(0)
KERNEL = torch.randn(12, 2, 3, 3, generator=RNG).double()
TRUTH = F.interpolate(torch.rand(3, 2, 4, 4, generator=RNG).double(), size=(12, 12), mode="bilinear")


def strided(x: Tensor) -> Tensor:
    return F.conv2d(x, KERNEL, stride=2, padding=1).flatten(1) + 1.0


def rectified(x: Tensor) -> Tensor:
    return strided(x).relu()


def error(found: Tensor) -> float:
    return float((found - TRUTH).square().mean().sqrt())


def test_an_affine_map_is_inverted():
    assert is_affine(strided, TRUTH)
    assert error(LeastSquares(inner=200)(strided, strided(TRUTH), torch.full_like(TRUTH, 0.5))) < 1e-3


def test_a_rectified_map_is_inverted_in_several_steps():
    assert not is_affine(rectified, TRUTH)
    start = torch.full_like(TRUTH, 0.5)
    one, five = (error(LeastSquares(steps=n)(rectified, rectified(TRUTH), start)) for n in (1, 5))
    assert five < 0.5 * one
    assert five < 0.25 * error(start)


def test_samples_do_not_affect_each_other():
    start = torch.full_like(TRUTH, 0.5)
    together = LeastSquares()(rectified, rectified(TRUTH), start)
    alone = LeastSquares()(rectified, rectified(TRUTH[1:2]), start[1:2])
    assert torch.allclose(together[1:2], alone, atol=1e-6)


def test_an_operation_without_a_forward_derivative_is_differenced(monkeypatch):
    start = torch.full_like(TRUTH, 0.5)
    wanted = LeastSquares()(rectified, rectified(TRUTH), start)

    def refused(*_: object) -> None:
        raise NotImplementedError("forward AD")

    monkeypatch.setattr(least_squares, "jvp", refused)
    assert error(LeastSquares()(rectified, rectified(TRUTH), start)) < 2 * error(wanted) + 1e-3


def test_a_map_that_keeps_nothing_leaves_the_start():
    start = torch.full_like(TRUTH, 0.5)
    found = LeastSquares()(lambda x: 0 * x.flatten(1)[:, :3], torch.zeros(3, 3).double(), start)
    assert torch.equal(found, start)
