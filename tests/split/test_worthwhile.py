"""Cuts worth scanning, and constraints as the command line takes them."""

from __future__ import annotations

import pytest
import torch

from leakgauge.errors import BadInput
from leakgauge.graphs import TensorSpec
from leakgauge.split.cuts import Cut, Sizes, worthwhile
from leakgauge.split.query import Constraints, parse_constraints


def cut(name: str, operation: str, elements: int, flops: int) -> Cut:
    spec = TensorSpec(name, (elements,), torch.float32)
    return Cut(name, (spec,), operation, (), 0, 0.5, flops, 0.5, Sizes(10, None))


def test_of_equal_work_the_smallest_and_deepest_is_kept():
    found = [
        cut("conv", "conv2d", 8, 1), cut("relu", "relu", 8, 1), cut("pool", "max_pool2d", 2, 1), cut("flat", "flatten", 2, 1),
        cut("wide", "linear", 9, 2), cut("wider", "pad", 12, 2), cut("out", "linear", 3, 3),
    ]  # fmt: skip
    assert [c.name for c in worthwhile(found)] == ["pool", "wide", "out"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes<=64KiB", Constraints(bytes=65536)),
        ("bytes<=100", Constraints(bytes=100)),
        ("flops<=1.5G, share<=10%", Constraints(flops=1.5e9, share=0.1)),
        ("FVU>=.5", Constraints(fvu=0.5)),
    ],
)
def test_constraints(text, expected):
    assert parse_constraints(text) == expected


@pytest.mark.parametrize("text", ["flops<=3KiB", "bytes<=3GFLOP", "share<=3", "<=3", "bytes<=1..2"])
def test_units_must_fit(text):
    with pytest.raises(BadInput, match="is not a constraint"):
        parse_constraints(text)
