"""The vision transformer of the split-inference paper: every cut between its blocks sends all tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded
from leakgauge.models.vit import PatchEmbed


class SplitViT(nn.Module):
    """Convolutional patch embedding, class token, learned positions, pre-norm blocks with dropout, linear head.

    The paper says 10 heads, which do not divide its width of 128; the authors' code has 8, the default here. With
    ``dim_head`` the heads are freed from the width, ``heads × dim_head`` values being mapped back to it, so 10 heads work.

    Ref: Liu and Zhu 2025, Table 2 — ViT and the size at its cuts
    """

    def __init__(
        self,
        *,
        in_channels: int = 3,
        side: int = 64,
        classes: int = 10,
        patch: int = 4,
        width: int = 128,
        depth: int = 6,
        heads: int = 8,
        dim_head: int | None = None,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if side % patch:
            raise BadInput(f"SplitViT needs a side that is a multiple of the patch, got side {side} and patch {patch}")
        if dim_head is None and width % heads:
            raise BadInput(
                f"a width of {width} does not divide into {heads} heads; choose another number or give dim_head"
            )
        with seeded(seed):
            self.patch_embed = PatchEmbed(in_channels=in_channels, width=width, patch=patch)
            self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
            self.pos_embed = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
            self.drop = nn.Dropout(dropout)
            hidden, inner = int(width * mlp_ratio), dim_head or width // heads
            self.blocks = nn.Sequential(
                *(SplitBlock(width, heads=heads, dim_head=inner, hidden=hidden, dropout=dropout) for _ in range(depth))
            )
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x)
        tokens = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1)
        tokens = self.blocks(self.drop(tokens + self.pos_embed))
        return self.head(self.norm(tokens)[:, 0])

    def cut(self, block: int) -> str:
        """Name of the layer whose output the paper's ``block`` (from 1) sends."""
        if not 1 <= block <= len(self.blocks):
            raise BadInput(f"this transformer has the blocks 1 to {len(self.blocks)}, got {block}")
        return f"blocks.{block - 1}"


class SplitBlock(nn.Module):
    """Attention and MLP, each on normalised tokens, with dropout, and added to them."""

    def __init__(self, width: int, *, heads: int, dim_head: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = FreeAttention(width, heads=heads, dim_head=dim_head, dropout=dropout)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class FreeAttention(nn.Module):
    """Multi-head self-attention whose heads need not add up to the width; weights of the softmax are dropped out."""

    def __init__(self, width: int, *, heads: int, dim_head: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * heads * dim_head)
        self.proj = nn.Linear(heads * dim_head, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        dropped = self.dropout if self.training else 0.0
        return self.proj(F.scaled_dot_product_attention(q, k, v, dropout_p=dropped).transpose(1, 2).flatten(2))
