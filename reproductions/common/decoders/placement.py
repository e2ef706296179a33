"""Which attention block follows which step of a decoder."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from reproductions.common.decoders.attention import (
    ConvolutionGate,
    GlobalAttention,
    LargeKernelGate,
    MultiScaleGate,
    SqueezeExcite,
)


@dataclass(frozen=True)
class MultiHead:
    """Multi-head attention over all pixels after every step: 4096 tokens at 64 × 64, hence the paper's tenfold cost.

    Ref: Liu and Zhu 2025, Table 5 — MHA
    """

    heads: int = 2

    def __call__(self, step: int, steps: int, channels: int, /) -> nn.Module:
        return GlobalAttention(channels, heads=self.heads)


@dataclass(frozen=True)
class AttentionAsConv:
    """A depthwise gate after every step, with ``squeeze`` followed by squeeze-and-excitation.

    Ref: Liu and Zhu 2025, Table 5 — AttentionAsConv and AttentionAsConv+SE
    """

    squeeze: bool = False

    def __call__(self, step: int, steps: int, channels: int, /) -> nn.Module:
        gate = ConvolutionGate(channels)
        return nn.Sequential(gate, SqueezeExcite(channels)) if self.squeeze else gate


@dataclass(frozen=True)
class WeakToStrong:
    """Weak attention first, strong attention last: AttentionAsConv+SE, then LSK, then MSCA after the last step.

    With the paper's four steps: AttentionAsConv+SE after the first two, LSK after the third, MSCA after the fourth. Fewer
    steps drop from the weak end; the paper does not say what it did there.

    Ref: Liu and Zhu 2025, Table 5 — AttentionAsConv+SE+LSK+MSCA
    """

    def __call__(self, step: int, steps: int, channels: int, /) -> nn.Module:
        left = steps - 1 - step
        if left == 0:
            return MultiScaleGate(channels)
        if left == 1:
            return LargeKernelGate(channels)
        return AttentionAsConv(squeeze=True)(step, steps, channels)
