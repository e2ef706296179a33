"""A block in front of the model that sorts the images of a batch into rows of its own gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.core.defaults import plain_defaults
from leakgauge.errors import BadInput
from leakgauge.errors.checked import checked
from leakgauge.servers.server import brightness, pixels_of


class ImprintBlock(nn.Module):
    """x + u Σ_k a·relu((⟨w, x⟩ − c_k)/a): every row measures ⟨w, x⟩ and cuts it off at an ascending c_k.

    Row k of ∂L/∂(weight of ``measure``) sums δ_i x_i over the images with ⟨w, x_i⟩ > c_k; its bias sums the δ_i. δ_i is the same
    in all rows, so neighbouring rows differ by the images between c_k and c_{k+1}. The gain a changes nothing but the size of these rows in
    the gradient, which it multiplies.

    Ref: Fowl et al. 2022 — imprint module
    """

    def __init__(self, weight: Tensor, cuts: Tensor, back: Tensor, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.measure = nn.Linear(len(weight), len(cuts))
        self.back = nn.Linear(1, len(weight), bias=False)
        with torch.no_grad():
            self.measure.weight.copy_(weight.expand(len(cuts), -1) / gain)
            self.measure.bias.copy_(-cuts / gain)
            self.back.weight.copy_(back[:, None])

    def forward(self, x: Tensor) -> Tensor:
        above = self.gain * F.relu(self.measure(x.flatten(1))).sum(1, keepdim=True)
        return x + self.back(above).view_as(x)


class WithBlock(nn.Module):
    """The block, then the agreed model."""

    def __init__(self, block: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.imprint = block
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.imprint(x))


@checked
@dataclass(frozen=True)
class ImprintServer:
    """Fowl et al. 2022: puts :class:`ImprintBlock` in front of the model. The attack ``imprint`` reads single images from its gradient.

    ``bins`` is the number of rows in the block: an image alone in its bin comes back exactly, images that share one come back mixed.
    The cuts are even over all brightnesses, or at equal mass for the auxiliary images if the server has some. ``change`` is how
    much the block may change a pixel of a white image, as a share of the range; it changes other images less. ``gain`` multiplies the
    block's share of the gradient: where each sample's gradient is clipped, a large one leaves nothing for the other layers.

    Deviations: the paper's second layer has one column per bin, all equal. Here the bins are summed before a single column, which
    gives the same gradient with fewer weights. The block's output is added to the image, so the model still works.

    Ref: Fowl et al. 2022 — a model changed for imprinting
    """

    bins: int = 256
    change: float = 0.01
    gain: float = 1.0

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise BadInput(f"an imprint needs at least 1 bin, got {self.bins}")
        if not self.gain > 0:
            raise BadInput(f"an imprint needs a positive gain, got {self.gain}")
        if not self.change > 0:
            raise BadInput(
                f"an imprint must change the image, or no gradient flows back through it; got change={self.change}"
            )

    @property
    def reads(self) -> str:
        return "imprint"

    @plain_defaults()
    def __call__(self, victim: Victim, /, *, auxiliary: Tensor | None = None, seed: int = 0) -> Victim:
        space = pixels_of(victim)
        weight, offset = brightness(space)
        cuts = even_cuts(self.bins)
        if auxiliary is not None:
            cuts = normal_cuts((auxiliary.detach().cpu().double().flatten(1) @ weight) + offset, self.bins)
        rng = torch.Generator().manual_seed(seed)
        signs = torch.randint(0, 2, weight.shape, generator=rng).double() * 2 - 1
        most = float((1 - cuts).clamp(min=0).sum())  # the largest Σ_k relu(⟨w, x⟩ − c_k), at a white image
        pixel = 1 / (weight * len(weight))  # the whole range of a pixel, in model space
        back = signs * self.change * pixel / max(most, 1e-12)
        block = ImprintBlock(weight, cuts - offset, back, self.gain).to(victim.device, victim.dtype)
        return replace(victim, model=WithBlock(block, victim.model), sent_by=repr(self))


def even_cuts(bins: int) -> Tensor:
    """c_k = k / bins: bins of equal width over all brightnesses, for a server without auxiliary images."""
    return torch.arange(bins, dtype=torch.float64) / bins


def normal_cuts(seen: Tensor, bins: int) -> Tensor:
    """Bins of equal probability, for brightnesses distributed like ``seen`` (taken as normal): c_k = μ + σ Φ⁻¹(k / bins), c_0 = 0.

    Ref: Fowl et al. 2022 — bins of equal mass
    """
    if len(seen) < 2:
        raise BadInput(f"bins of equal probability need at least 2 auxiliary images, got {len(seen)}")
    cuts = seen.mean() + seen.std().clamp(min=1e-6) * torch.special.ndtri(
        torch.arange(bins, dtype=torch.float64) / bins
    )
    return cuts.clamp(min=0.0)
