"""A small text classifier with learned absolute positions, similar to BERT."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakgauge.errors import BadInput
from leakgauge.models.seeded import seeded
from leakgauge.models.vit import MLP, Attention, PlainBlock


class TextTransformer(nn.Module):
    """Token embedding plus learned position embedding, transformer blocks, linear head (Devlin et al. 2019, made small).

    The standard layout normalises the sum of the embeddings; every attention and MLP has a residual connection followed by a
    normalisation. ``residual=False`` stacks attention, normalisation and MLP with nothing before or around the first attention:
    architecture A of the APRIL paper, where the first attention reads exactly the sum of token and position embedding. The head
    reads the first token, where BERT puts ``[CLS]``, or without ``first_token`` the mean of all. ``padding`` is the id of a token
    that is not trained. ``position_std`` is the deviation of the initial positions; ``dropout`` applies to the sum of the
    embeddings in train mode.
    """

    def __init__(
        self,
        *,
        vocab: int = 1000,
        length: int = 32,
        classes: int = 2,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        residual: bool = True,
        first_token: bool = True,
        padding: int | None = None,
        position_std: float = 0.02,
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if width % heads:
            raise BadInput(
                f"TextTransformer needs a width that is a multiple of the heads, got width {width} and {heads} heads"
            )
        self.first_token = first_token
        with seeded(seed):
            self.token_embed = nn.Embedding(vocab, width, padding_idx=padding)
            self.pos_embed = nn.Parameter(torch.randn(1, length, width) * position_std)
            self.norm = nn.LayerNorm(width) if residual else nn.Identity()
            self.drop = nn.Dropout(dropout)
            hidden = int(width * mlp_ratio)
            kind = PostNormBlock if residual else PlainBlock
            blocks = (kind(width=width, heads=heads, hidden=hidden, qkv_bias=qkv_bias) for _ in range(depth))
            self.blocks = nn.Sequential(*blocks)
            self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = self.token_embed(ids) + self.pos_embed[:, : ids.shape[1]]
        tokens = self.blocks(self.drop(self.norm(tokens)))
        return self.head(tokens[:, 0] if self.first_token else tokens.mean(1))


class PostNormBlock(nn.Module):
    """Attention and MLP, each with a residual connection and then a normalisation."""

    def __init__(self, *, width: int, heads: int, hidden: int, qkv_bias: bool) -> None:
        super().__init__()
        self.attn = Attention(width=width, heads=heads, qkv_bias=qkv_bias)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = MLP(width=width, hidden=hidden)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))
