"""Privacy tokens: trainable summaries of a gradient, by an autoencoder or a transformer.

A gradient is one vector per layer, each (m, size) for m gradients; a token is (m, size of the token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from leakgauge.errors import BadInput

Final = Literal["relu", "signed"]


class TokenNetwork(nn.Module):
    """Turns gradients into tokens of ``size`` values. :meth:`forward` also returns the network's own loss (0 if it has none)."""

    size: int

    def forward(self, layers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


class Token(Protocol):
    """Builds the network once the sizes of the gradient's layers are known."""

    def build(self, sizes: Sequence[int], /) -> TokenNetwork: ...


@dataclass(frozen=True)
class AutoencoderToken:
    """The code of an autoencoder on the whole gradient, d − ``hidden`` − ``size`` and back, trained together with the critic.

    ``final="relu"`` is the paper's decoder: it cannot output negative numbers, although they carry about half of a gradient's
    energy. ``final="signed"`` omits that activation.

    Ref: Meng et al. 2025, Appendix A — autoencoder-based privacy token
    """

    hidden: int = 512
    size: int = 128
    final: Final = "relu"

    def __post_init__(self) -> None:
        if self.final not in ("relu", "signed"):
            raise BadInput(f"AutoencoderToken needs final='relu' or 'signed', got {self.final!r}")

    def build(self, sizes: Sequence[int], /) -> TokenNetwork:
        return Autoencoder(sum(sizes), hidden=self.hidden, size=self.size, final=self.final)


@dataclass(frozen=True)
class TransformerToken:
    """Each layer's gradient goes through its own linear map to ``width`` values; one transformer layer over them, concatenated.

    Ref: Meng et al. 2025, Appendix A — transformer-based privacy token
    """

    width: int = 512
    heads: int = 8
    feedforward: int = 2048
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise BadInput(f"TransformerToken needs a width divisible by its heads, got {self.width} and {self.heads}")

    def build(self, sizes: Sequence[int], /) -> TokenNetwork:
        return LayerTransformer(sizes, self)


class Autoencoder(TokenNetwork):
    """Encoder with LeakyReLU after both layers; decoder back to the gradient. Its own loss is the mean squared error."""

    def __init__(self, d: int, *, hidden: int, size: int, final: Final) -> None:
        super().__init__()
        self.size: int = size
        self.encoder = nn.Sequential(nn.Linear(d, hidden), nn.LeakyReLU(), nn.Linear(hidden, size), nn.LeakyReLU())
        end = nn.ReLU() if final == "relu" else nn.Identity()
        self.decoder = nn.Sequential(nn.Linear(size, hidden), nn.LeakyReLU(), nn.Linear(hidden, d), end)

    def forward(self, layers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        gradient = torch.cat(list(layers), 1)
        code = self.encoder(gradient)
        return code, (self.decoder(code) - gradient).square().mean()


class LayerTransformer(TokenNetwork):
    """One token per layer of the gradient, mixed by self-attention."""

    def __init__(self, sizes: Sequence[int], options: TransformerToken) -> None:
        super().__init__()
        self.size: int = options.width * len(sizes)
        self.maps = nn.ModuleList(nn.Linear(size, options.width) for size in sizes)
        self.mixer = nn.TransformerEncoderLayer(
            options.width, options.heads, options.feedforward, options.dropout, batch_first=True
        )

    def forward(self, layers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        tokens = torch.stack([to(layer) for to, layer in zip(self.maps, layers, strict=True)], 1)
        mixed = self.mixer(tokens).flatten(1)
        return mixed, mixed.new_zeros(())
