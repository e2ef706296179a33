"""Attention blocks between the steps of a decoder, as the released code of the split-inference paper defines them.

Each keeps the shape (N, C, H, W). Two of them share little more than the name with the blocks of other papers:
"LSK" here is not the selective kernel of LSKNet, and "MSCA" is not the strip convolutions of SegNeXt.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GlobalAttention(nn.Module):
    """t ← t + MHA(t), then t ← t + W₂ GELU(W₁ LN(t)) on the H·W pixels t as tokens of width C."""

    def __init__(self, channels: int, *, heads: int = 2) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(channels), nn.Linear(channels, channels), nn.GELU(), nn.Linear(channels, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        tokens = tokens + self.mlp(tokens)
        return tokens.transpose(1, 2).unflatten(2, x.shape[2:])


class ConvolutionGate(nn.Module):
    """W (x ⊙ σ(D₅ x)): a depthwise 5 × 5 convolution D₅ gates the input, a 1 × 1 convolution W mixes; no biases."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gate = nn.Conv2d(channels, channels, 5, padding=2, groups=channels, bias=False)
        self.mix = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x * self.gate(x).sigmoid())


class SqueezeExcite(nn.Module):
    """x ⊙ σ(W₂ ReLU(W₁ mean(x))) with C/16 values in between; no biases.

    Ref: Hu et al. 2018, Eqs. (2)-(4) — squeeze, excitation and scaling
    """

    def __init__(self, channels: int, *, reduction: int = 16) -> None:
        super().__init__()
        inner = max(1, channels // reduction)
        self.squeeze = nn.Conv2d(channels, inner, 1, bias=False)
        self.excite = nn.Conv2d(inner, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class LargeKernelGate(nn.Module):
    """x ⊙ σ(W D₇ x): depthwise 7 × 7, then 1 × 1, both with bias ("LSK" of the released code)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.pointwise(self.depthwise(x)).sigmoid()


class MultiScaleGate(nn.Module):
    """x ⊙ W [D₃ x, D₅ x, D₇ x]: depthwise 3 × 3, 5 × 5 and 7 × 7 side by side, 1 × 1 from 3C to C, all with bias.

    The gate is not squashed ("MSCA" of the released code).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.Conv2d(channels, channels, side, padding=side // 2, groups=channels) for side in (3, 5, 7)
        )
        self.fuse = nn.Conv2d(3 * channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.fuse(torch.cat([scale(x) for scale in self.scales], 1))
