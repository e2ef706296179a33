"""The Swin transformer, with the parameter names of timm, for images and windows of any size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded


class Swin(nn.Module):
    """Patches, then stages of attention inside windows, every other block with windows shifted by half, halving the side in between.

    Defaults are Swin-T at 224×224. A stage that is no larger than a window is one window, unshifted. There is no dropout and
    no stochastic depth.

    Ref: Liu et al. 2021, section 3 — hierarchical attention in shifted windows
    """

    def __init__(
        self,
        *,
        side: int = 224,
        classes: int = 1000,
        patch: int = 4,
        window: int = 7,
        width: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        heads: Sequence[int] = (3, 6, 12, 24),
        seed: int = 0,
    ) -> None:
        super().__init__()
        tokens = side // patch
        if side % patch or tokens % 2 ** (len(depths) - 1):
            raise BadInput(
                f"Swin needs a side that patches and halvings divide, got side {side}, patch {patch}, {len(depths)} stages"
            )
        with seeded(seed):
            self.patch_embed = PatchEmbed(width, patch)
            stages: list[nn.Module] = []
            for i, (depth, count) in enumerate(zip(depths, heads, strict=True)):
                size = min(window, tokens >> i)
                if (tokens >> i) % size:
                    raise BadInput(f"windows of {size} tokens do not fill a stage of {tokens >> i} a side")
                stages.append(Stage(width << i, depth=depth, heads=count, side=tokens >> i, window=size, first=i == 0))
            self.layers = nn.Sequential(*stages)
            self.norm = nn.LayerNorm(width << (len(depths) - 1))
            self.head = Head(width << (len(depths) - 1), classes)
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    nn.init.trunc_normal_(parameter, std=0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.patch_embed(x))).mean((1, 2)))


class Head(nn.Module):
    """The classifier, under timm's name ``head.fc``."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class PatchEmbed(nn.Module):
    """Image (B, 3, H, W) to normalised tokens (B, H/patch, W/patch, width)."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Merge(nn.Module):
    """Four neighbouring tokens become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        four = x.reshape(batch, side // 2, 2, side // 2, 2, width).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.reduction(self.norm(four))


class Stage(nn.Module):
    """Merging (but in the first stage), then blocks."""

    def __init__(self, width: int, *, depth: int, heads: int, side: int, window: int, first: bool) -> None:
        super().__init__()
        self.downsample = nn.Identity() if first else Merge(width // 2)
        shift = window // 2 if window < side else 0
        self.blocks = nn.Sequential(
            *(Block(width, heads=heads, side=side, window=window, shift=shift if i % 2 else 0) for i in range(depth))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.downsample(x))


class Block(nn.Module):
    """Attention inside windows and an MLP, each on normalised tokens and added to them."""

    mask: Tensor | None

    def __init__(self, width: int, *, heads: int, side: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, heads=heads, window=window)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)
        self.register_buffer("mask", shifted_mask(side, window, shift) if shift else None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attended(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def _attended(self, x: Tensor) -> Tensor:
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        windows = into_windows(x, self.window)
        out = out_of_windows(self.attn(windows, self.mask), x.shape[1], self.window)
        return out.roll((self.shift, self.shift), (1, 2)) if self.shift else out


class MLP(nn.Module):
    """The two linear layers of a block, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class WindowAttention(nn.Module):
    """Self-attention within each window, with a learned bias for each offset between two tokens.

    Attention is written out, for it is differentiated twice.
    """

    relative_position_index: Tensor

    def __init__(self, width: int, *, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_buffer("relative_position_index", relative_positions(window), persistent=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (B, windows, tokens, width), mask (windows, tokens, tokens) of zeros and large negative numbers."""
        batch, windows, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, windows, tokens, 3, self.heads, -1).permute(3, 0, 1, 4, 2, 5).unbind(0)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        bias = self.relative_position_bias_table[self.relative_position_index.flatten()]
        scores = scores + bias.reshape(tokens, tokens, self.heads).permute(2, 0, 1)
        if mask is not None:
            scores = scores + mask[:, None]
        return self.proj((scores.softmax(-1) @ v).transpose(2, 3).reshape(batch, windows, tokens, width))


def into_windows(x: Tensor, window: int) -> Tensor:
    """(B, H, W, C) to (B, windows, window², C)."""
    batch, side, _, width = x.shape
    count = side // window
    return x.reshape(batch, count, window, count, window, width).transpose(2, 3).reshape(batch, -1, window**2, width)


def out_of_windows(x: Tensor, side: int, window: int) -> Tensor:
    """The inverse of :func:`into_windows`."""
    batch, count, width = len(x), side // window, x.shape[-1]
    return x.reshape(batch, count, count, window, window, width).transpose(2, 3).reshape(batch, side, side, width)


def relative_positions(window: int) -> Tensor:
    """Row of the bias table for each pair of tokens of a window, (window², window²)."""
    at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
    down, across = (at[:, :, None] - at[:, None, :]) + window - 1
    return down * (2 * window - 1) + across


def shifted_mask(side: int, window: int, shift: int) -> Tensor:
    """Keeps tokens apart that the shift brought into one window from opposite edges, (windows, window², window²)."""
    at = torch.arange(side)
    region = (at >= side - window).long() + (at >= side - shift).long()
    regions = into_windows((3 * region[:, None] + region[None, :])[None, :, :, None].float(), window)[0, :, :, 0]
    return torch.where(regions[:, None, :] == regions[:, :, None], 0.0, -100.0)
