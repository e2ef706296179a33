"""Weights of the first linear layer that make each unit fire for few images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leakgauge.core import Pixels, Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.core.running import deep_copy
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked
from leakgauge.families import find_roles
from leakgauge.servers.server import pixels_of


@checked
@dataclass(frozen=True)
class TrapWeightServer:
    """Boenisch et al. 2023: keeps the architecture, but chooses the weights of a fully connected first layer such that each unit
    fires for few images. The attack ``linear_rows`` reads the images that are alone in some unit.

    Without auxiliary images the positive half of a row is ``scale`` times the negative half: the smaller, the fewer images pass.
    With auxiliary images the bias of each unit is set so that it fires for a ``share`` of them, which suits a batch of 1 / share.

    Ref: Boenisch et al. 2023 — trap weights
    Ref: Nowak et al. 2024 — biases by quantiles (QBI)
    """

    share: float = 0.05
    scale: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise BadInput(f"trap weights need a share of images between 0 and 1, got {self.share}")
        if not self.scale > 0:
            raise BadInput(f"trap weights need a positive scale, got {self.scale}")

    @property
    def reads(self) -> str:
        return "linear_rows"

    @plain_defaults()
    def __call__(self, victim: Victim, /, *, auxiliary: Tensor | None = None, seed: int = 0) -> Victim:
        space, name = pixels_of(victim), find_roles(victim.model).first_layer
        model = deep_copy(victim.model)
        layer = None if name is None else model.get_submodule(name)
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            raise Inapplicable(
                f"the first layer is a {type(layer).__name__}; trap weights need a Linear with a bias on the whole image"
            )
        if layer.in_features != space.shape[0] * space.shape[1] * space.shape[2]:
            raise Inapplicable(f"the first layer {name} takes {layer.in_features} values, which is not a whole image")
        rows = traps(layer.out_features, layer.in_features, self.scale, torch.Generator().manual_seed(seed))
        weight, bias = in_model_space(rows, space)
        if auxiliary is not None:
            answers = auxiliary.detach().cpu().double().flatten(1) @ weight.T
            bias = -torch.quantile(answers, 1 - self.share, dim=0)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        return replace(victim, model=model, sent_by=repr(self))


def traps(units: int, inputs: int, scale: float, rng: torch.Generator) -> Tensor:
    """Rows: a random half is −|N(0, 1)|, the other half the same values times −``scale``.

    Ref: Boenisch et al. 2023 — rows of trap weights
    """
    rows = torch.empty(units, inputs, dtype=torch.float64)
    half = inputs // 2
    order = torch.rand(units, inputs, generator=rng).argsort(1)
    values = torch.randn(units, inputs - half, generator=rng, dtype=torch.float64).abs()
    mixed = torch.rand(units, half, generator=rng).argsort(1)
    rows.scatter_(1, order[:, half:], -values)
    rows.scatter_(1, order[:, :half], scale * values[:, :half].gather(1, mixed))
    return rows / inputs**0.5


def in_model_space(rows: Tensor, space: Pixels) -> tuple[Tensor, Tensor]:
    """(W, b) with W x + b = ``rows`` p for the image p in [0, 1] that ``x`` encodes."""
    low, high = space.bounds
    channels, area = space.shape[0], space.shape[1] * space.shape[2]
    mean = torch.tensor(space.mean, dtype=torch.float64).expand(channels).repeat_interleave(area)
    std = torch.tensor(space.std, dtype=torch.float64).expand(channels).repeat_interleave(area)
    return rows * std / (high - low), rows @ ((mean - low) / (high - low))
