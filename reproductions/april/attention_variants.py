"""Models of the studies with a sharper attention, and how evenly a model's attention spreads what it reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.channels import Gradient
from leakgauge.core import Observation, Victim, share
from leakgauge.engine.reference import capturing
from leakgauge.models.vit import Attention, ViT
from reproductions.april import study
from reproductions.april.study import Images


class Unscaled(Attention):
    """softmax(q kᵀ) v: the logits are not divided by √d_k."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).flatten(2))


class AsPrinted(Unscaled):
    """softmax(q kᵀ) / √d_k · v, as Eq. (4) of the paper is printed: what the softmax gives is divided, not the logits."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        values = v / math.sqrt(v.shape[-1])
        return self.proj(F.scaled_dot_product_attention(q, k, values, scale=1.0).transpose(1, 2).flatten(2))


Change = Callable[[ViT], None]


def with_attention(kind: type[Attention]) -> Change:
    """The same weights in another attention."""

    def change(model: ViT) -> None:
        for block in model.blocks:
            old = block.attn
            assert isinstance(old, Attention)
            new = kind(width=old.proj.in_features, heads=old.heads, qkv_bias=old.qkv.bias is not None)
            new.load_state_dict(old.state_dict())
            block.attn = new

    return change


def as_asked(model: ViT, options: study.Options) -> ViT:
    """The model with the attention that the command line asks for."""
    if options.unscaled:
        with_attention(Unscaled)(model)
    return model


def xavier(model: ViT) -> None:
    """Q, K and V each from Glorot's uniform distribution: √3 times PyTorch's own weights of a linear layer."""
    rng = torch.Generator().manual_seed(0)  # one for all: from the same numbers q and k would be the same
    with torch.no_grad():
        for block in model.blocks:
            assert isinstance(block.attn, Attention)
            for part in block.attn.qkv.weight.chunk(3):
                nn.init.xavier_uniform_(part, generator=rng)


def orthogonal_patches(model: ViT) -> None:
    """A patch embedding whose inverse enlarges nothing, as long as the usual one."""
    weight = model.patch_embed.proj.weight
    with torch.no_grad():
        length = weight.norm()
        nn.init.orthogonal_(weight, generator=torch.Generator().manual_seed(0))
        weight *= length / weight.norm()


@dataclass(frozen=True)
class Variant:
    """A model of the studies with some things changed."""

    name: str
    architecture: str = "A"
    changes: tuple[Change, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def victim(self, images: Images, make: study.Make, options: study.Options) -> Victim:
        model = make(images, architecture=self.architecture, quick=options.quick, seed=options.seed, **self.settings)
        for change in self.changes:
            change(model)
        return study.victim_of(model, images, options.device)


USUAL = Variant("as in the studies")
XAVIER = Variant("Xavier weights in q, k, v", changes=(xavier,))
UNSCALED = Variant("logits not divided by √d", changes=(with_attention(Unscaled),))
ONE_BLOCK = Variant("logits not divided by √d, one block", changes=UNSCALED.changes, settings={"depth": 1})
PRINTED = Variant("Eq. (4) as printed", changes=(with_attention(AsPrinted),))
FAR = Variant("positions from N(0, 3²)", settings={"position_std": 3.0})
SHALLOW = Variant("two blocks", settings={"depth": 2})
NEAR = Variant("positions from N(0, 0.02²)", settings={"position_std": 0.02})
RESIDUAL = Variant("architecture B", "B")


@dataclass(frozen=True)
class Evenness:
    """How alike the gradients of the tokens are, means over the observations.

    ``weight`` is the largest attention weight of a query in the first block (1/tokens if it is even), ``spread`` the share of
    Σ‖∂l/∂z_i‖² over the patches that is not that of their mean, ``condition`` the condition number of ∂l/∂z.
    """

    weight: float
    spread: float
    condition: float


def evenness(victim: Victim, seen: list[Observation], images: Images) -> Evenness:
    spreads, conditions = [], []
    for one in seen:
        tokens = one.signal["pos_embed"][0].double()
        patches = tokens[1:]
        spreads.append(float((patches - patches.mean(0)).square().sum() / patches.square().sum()))
        values = torch.linalg.svdvals(tokens)
        conditions.append(float(values[0] / values[-1].clamp_min(torch.finfo(values.dtype).tiny)))
    return Evenness(
        largest_weight(victim, images), study.mean(spreads), math.exp(study.mean(list(map(math.log, conditions))))
    )


def largest_weight(victim: Victim, images: Images) -> float:
    """Mean over images, heads and queries of the largest weight in the first attention."""
    model = victim.model
    assert isinstance(model, ViT)
    module = model.blocks[0].get_submodule("attn")
    assert isinstance(module, Attention)
    with torch.no_grad(), capturing(model, ["blocks.0.attn"]) as entered:
        victim(victim.space.encode(images.x).to(victim.device))
        q, k, _ = (
            module.qkv(entered["blocks.0.attn"]).unflatten(2, (3, module.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )
    scale = 1.0 if isinstance(module, Unscaled) else 1 / math.sqrt(q.shape[-1])
    return float((q @ k.transpose(-1, -2) * scale).softmax(-1).amax(-1).mean())


BUCKETS = 32_768
STEP = 1e-4


def sensitivities(victim: Victim, images: Images, *, pixels: int | None = None, seed: int = 0) -> tuple[Tensor, float]:
    """Singular values of ∂g/∂x at the first image, falling, and ‖g‖; in float64 by central differences.

    ``pixels`` says by how many of the image's values, the first ones; by default all.

    Each of the gradient's millions of entries is added to one of some buckets with a random sign, which keeps lengths up to
    √(pixels / buckets).

    Ref: Clarkson and Woodruff 2013, section 2 — sparse embedding of a subspace
    """
    x, y = victim.space.encode(images.x[:1]).double(), images.y[:1]

    def gradient(at: Tensor) -> Tensor:
        return torch.cat([t.flatten() for t in share(victim, Gradient(), at, y).signal.values()])

    victim.model.double()
    whole = gradient(x)
    rng = torch.Generator().manual_seed(seed)
    size = min(BUCKETS, len(whole))
    bucket = torch.randint(size, whole.shape, generator=rng)
    sign = torch.randint(2, whole.shape, generator=rng).double() * 2 - 1
    columns = torch.zeros(pixels or x.numel(), size, dtype=torch.float64)
    for pixel in range(len(columns)):
        move = torch.zeros_like(x)
        move.view(-1)[pixel] = STEP
        change = (gradient(x + move) - gradient(x - move)) / (2 * STEP)
        columns[pixel].index_add_(0, bucket, sign * change)
    victim.model.float()
    return torch.linalg.svdvals(torch.linalg.qr(columns.T).R), float(whole.norm())


def carrying(values: Tensor, share_of: float) -> int:
    """How many of the largest singular values make up this share of Σσ²."""
    squares = values.square().cumsum(0)
    return int((squares < share_of * squares[-1]).sum()) + 1
