"""The patch embedding that closed-form APRIL inverts: a convolution, taken as one linear map on every patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.errors import Inapplicable


def pixels_from_patches(embedded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Values of each patch (patches, values) from E = W x + b, by the pseudo-inverse of W (width, values).

    Ref: APRIL (Lu et al. 2022), Eq. (11) — patch embedding and its inverse
    """
    shifted = embedded if bias is None else embedded - bias.detach().double().cpu()
    return shifted @ torch.linalg.pinv(weight.detach().double().cpu()).T


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """How a convolution cuts an image of ``shape`` (channels, height, width) into patches, which may overlap or reach over
    its border, and what it makes of each: ``weight`` (width, values) in float64."""

    conv: nn.Conv2d
    shape: tuple[int, ...]

    @classmethod
    def of(cls, layer: nn.Module, shape: tuple[int, ...]) -> PatchGrid:
        """Refuses what is no convolution with zeros around the image."""
        if not isinstance(layer, nn.Conv2d):
            raise Inapplicable(
                f"the patch embedding is no convolution: it is a {type(layer).__name__}, whose order of pixels is not known"
            )
        if layer.padding_mode != "zeros" or layer.padding == "same":
            raise Inapplicable("the patch embedding is no convolution over patches of the image with zeros around it")
        return cls(layer, shape)

    @property
    def weight(self) -> Tensor:
        """Of a convolution in groups, the channels that an output does not read have weight zero."""
        own = self.conv.weight.detach().double().cpu()
        groups, (outputs, inputs) = self.conv.groups, own.shape[:2]
        dense = own.new_zeros(outputs, groups * inputs, *own.shape[2:])
        for g in range(groups):
            rows = slice(g * outputs // groups, (g + 1) * outputs // groups)
            dense[rows, g * inputs : (g + 1) * inputs] = own[rows]
        return dense.flatten(1)

    def cut(self, image: Tensor) -> Tensor:
        """One image (1, C, H, W) as (patches, values); cells beyond its border are zero."""
        return F.unfold(image, **self._how)[0].T

    def assembled(self, patches: Tensor) -> Tensor:
        """The image (C, H, W) of patches (patches, values): the mean where they overlap, zero where there is none."""
        return self._folded(patches) / self._covered(patches).clamp_min(1)

    def unseen(self) -> int:
        """How many values of the image lie in no patch."""
        return int((self._covered(self.cut(torch.zeros(1, *self.shape))) == 0).sum())

    def _covered(self, patches: Tensor) -> Tensor:
        return self._folded(torch.ones_like(patches))

    def _folded(self, patches: Tensor) -> Tensor:
        return F.fold(patches.T[None], self.shape[1:], **self._how)[0]

    @property
    def _how(self) -> dict[str, Any]:
        conv = self.conv
        padding = 0 if conv.padding == "valid" else conv.padding
        return {"kernel_size": conv.kernel_size, "dilation": conv.dilation, "padding": padding, "stride": conv.stride}


@dataclass(frozen=True, eq=False)
class Box:
    """All valid images, cut into patches, lie within ``radius`` (Frobenius) of the grey ``middle`` (patches, values).

    ``tokens`` (patches, width) is what the patch embedding makes of the middle. A value runs over ``span`` in root mean
    square, and at least over ``narrowest``, in model space; ``pixels`` of them lie in a patch.
    """

    middle: Tensor
    tokens: Tensor
    radius: float
    span: float
    narrowest: float
    pixels: int

    @classmethod
    def of(cls, victim: Victim, grid: PatchGrid) -> Box:
        huge = torch.full((1, *victim.space.shape), 1e12, dtype=torch.float64)
        low, high = victim.space.project(-huge), victim.space.project(huge)
        grey = (low + high) / 2
        with torch.no_grad():
            tokens = grid.conv(grey.to(victim.device, victim.dtype)).flatten(2).transpose(1, 2)[0].double().cpu()
        return cls(
            middle=grid.cut(grey),
            tokens=tokens,
            radius=float((grid.cut(high) - grid.cut(low)).norm()) / 2,
            span=float((high - low).square().mean().sqrt()),
            narrowest=float((high - low).min()),
            pixels=grey.numel() - grid.unseen(),
        )
