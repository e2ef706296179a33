"""A small vision transformer with the parameter names of the larger public ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded


class ViT(nn.Module):
    """Patch embedding, learned position embedding, pre-norm blocks, linear head (Dosovitskiy et al. 2021).

    Without ``class_token`` the head reads the mean of the patch tokens. ``residual=False`` stacks attention, normalisation and
    MLP with nothing before or around the first attention: architecture A of the APRIL paper, where the first attention reads
    exactly the sum of patch and position embedding. ``position_std`` is the deviation of the initial positions.
    """

    def __init__(
        self,
        *,
        in_channels: int = 1,
        side: int = 28,
        classes: int = 10,
        patch: int = 4,
        width: int = 64,
        depth: int = 3,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        class_token: bool = True,
        residual: bool = True,
        final_norm: bool = True,
        position_std: float = 0.02,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if side % patch:
            raise BadInput(f"ViT needs a side that is a multiple of the patch, got side {side} and patch {patch}")
        if width % heads:
            raise BadInput(f"ViT needs a width that is a multiple of the heads, got width {width} and {heads} heads")
        with seeded(seed):
            self.patch_embed = PatchEmbed(in_channels=in_channels, width=width, patch=patch)
            self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02) if class_token else None
            tokens = (side // patch) ** 2 + int(class_token)
            self.pos_embed = nn.Parameter(torch.randn(1, tokens, width) * position_std)
            hidden = int(width * mlp_ratio)
            kind = Block if residual else PlainBlock
            blocks = (kind(width=width, heads=heads, hidden=hidden, qkv_bias=qkv_bias) for _ in range(depth))
            self.blocks = nn.Sequential(*blocks)
            self.norm = nn.LayerNorm(width) if final_norm else nn.Identity()
            self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), tokens], dim=1)
        tokens = self.norm(self.blocks(tokens + self.pos_embed))
        return self.head(tokens.mean(1) if self.cls_token is None else tokens[:, 0])


class PatchEmbed(nn.Module):
    """Cuts the image into patches and maps each to a token, as one convolution."""

    def __init__(self, *, in_channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention with one fused ``qkv`` layer."""

    def __init__(self, *, width: int, heads: int, qkv_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """The two linear layers of a block."""

    def __init__(self, *, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention and MLP, each on normalised tokens with a residual connection."""

    def __init__(self, *, width: int, heads: int, hidden: int, qkv_bias: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width=width, heads=heads, qkv_bias=qkv_bias)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width=width, hidden=hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PlainBlock(nn.Module):
    """Attention, normalisation, MLP, one after another: nothing bypasses the attention."""

    def __init__(self, *, width: int, heads: int, hidden: int, qkv_bias: bool) -> None:
        super().__init__()
        self.attn = Attention(width=width, heads=heads, qkv_bias=qkv_bias)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width=width, hidden=hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm2(self.attn(x)))
