"""Attention blocks and their placement against the definitions in their docstrings."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.attacks.decoders import AttentionAsConv, MultiHead, WeakToStrong
from leakgauge.attacks.decoders.attention import (
    ConvolutionGate,
    GlobalAttention,
    LargeKernelGate,
    MultiScaleGate,
    SqueezeExcite,
)
from leakgauge.models.seeded import seeded
from leakgauge.testing import check_part

C = 32
SIZES = {
    GlobalAttention: 4 * C * C + 4 * C + 2 * C + 2 * (C * C + C),
    ConvolutionGate: 25 * C + C * C,
    SqueezeExcite: 2 * C * (C // 16),
    LargeKernelGate: 49 * C + C + C * C + C,
    MultiScaleGate: (9 + 25 + 49) * C + 3 * C + 3 * C * C + C,
}


@pytest.fixture
def x():
    return torch.randn(2, C, 6, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("block", SIZES, ids=lambda b: b.__name__)
def test_shape_and_size(block, x):
    with seeded(0):
        made = block(C)
    assert made(x).shape == x.shape
    assert sum(p.numel() for p in made.parameters()) == SIZES[block]


def test_convolution_gate_by_hand(x):
    with seeded(0):
        block = ConvolutionGate(C)
    gate = F.conv2d(x, block.gate.weight, padding=2, groups=C).sigmoid()
    expected = torch.einsum("oi,nihw->nohw", block.mix.weight[:, :, 0, 0], x * gate)
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=1e-4)


def test_a_convolution_gate_that_sees_nothing_halves(x):
    block = ConvolutionGate(C)
    nn.init.zeros_(block.gate.weight)
    block.mix.weight.data = torch.eye(C)[:, :, None, None]
    torch.testing.assert_close(block(x), x / 2)


def test_squeeze_excite_by_hand(x):
    with seeded(0):
        block = SqueezeExcite(C)
    weight = (x.mean((2, 3)) @ block.squeeze.weight.flatten(1).T).relu() @ block.excite.weight.flatten(1).T
    torch.testing.assert_close(block(x), x * weight.sigmoid()[:, :, None, None], atol=1e-6, rtol=1e-5)
    assert SqueezeExcite(4).squeeze.out_channels == 1  # fewer than 16 channels still leave one value


def test_large_kernel_gate_is_half_open_without_weights(x):
    block = LargeKernelGate(C)
    nn.init.zeros_(block.pointwise.weight)
    nn.init.zeros_(block.pointwise.bias)
    torch.testing.assert_close(block(x), x / 2)
    nn.init.constant_(block.pointwise.bias, 50.0)
    torch.testing.assert_close(block(x), x)


def test_multi_scale_gate_is_not_squashed(x):
    block = MultiScaleGate(C)
    nn.init.zeros_(block.fuse.weight)
    nn.init.constant_(block.fuse.bias, 3.0)
    torch.testing.assert_close(block(x), 3 * x)


def test_multi_scale_gate_sees_seven_pixels_wide():
    with seeded(0):
        block = MultiScaleGate(4)
    x = torch.ones(1, 4, 15, 15)
    other = x.clone()
    other[..., 7, 7] = 2.0
    changed = (block(x) != block(other)).any(1)[0].nonzero()
    assert changed.min() == 4
    assert changed.max() == 10


def test_global_attention_by_hand(x):
    with seeded(0):
        block = GlobalAttention(C, heads=2)
    tokens = x.flatten(2).mT
    q, k, v = F.linear(tokens, block.attention.in_proj_weight, block.attention.in_proj_bias).chunk(3, 2)
    heads = [
        (a @ b.mT / (C // 2) ** 0.5).softmax(2) @ c
        for a, b, c in zip(q.chunk(2, 2), k.chunk(2, 2), v.chunk(2, 2), strict=True)
    ]
    tokens = tokens + block.attention.out_proj(torch.cat(heads, 2))
    tokens = tokens + block.mlp(tokens)
    torch.testing.assert_close(block(x), tokens.mT.reshape(x.shape), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "placement", [MultiHead(), AttentionAsConv(), AttentionAsConv(squeeze=True), WeakToStrong()], ids=repr
)
def test_placements_are_parts(placement):
    check_part(placement)


def test_weak_to_strong_is_the_papers_with_four_steps():
    blocks = [WeakToStrong()(step, 4, C) for step in range(4)]
    assert [type(b) for b in blocks[2:]] == [LargeKernelGate, MultiScaleGate]
    for weak in blocks[:2]:
        assert [type(part) for part in weak] == [ConvolutionGate, SqueezeExcite]
    assert [type(WeakToStrong()(step, 2, C)) for step in range(2)] == [LargeKernelGate, MultiScaleGate]


def test_squeeze_is_an_option_of_attention_as_conv():
    assert isinstance(AttentionAsConv()(0, 1, C), ConvolutionGate)
    assert [type(part) for part in AttentionAsConv(squeeze=True)(0, 1, C)] == [ConvolutionGate, SqueezeExcite]
    assert isinstance(MultiHead(heads=4)(0, 1, C), GlobalAttention)
