"""The patch embedding that closed-form APRIL inverts: one linear map per patch, and which values of the image each patch holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.core import Victim
from leakgauge.engine.reference import inputs_of
from leakgauge.errors import Inapplicable


def pixels_from_patches(embedded: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Values of each patch (patches, values) from E = W x + b, by the pseudo-inverse of W (width, values).

    Ref: APRIL (Lu et al. 2022), Eq. (11) — patch embedding and its inverse
    """
    shifted = embedded if bias is None else embedded - bias.detach().double().cpu()
    return shifted @ torch.linalg.pinv(weight.detach().double().cpu()).T


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """How an image of ``shape`` (channels, height, width) is cut into patches, and how each becomes a token.

    ``index`` (patches, values) is the index in the flat image of each cell of a patch, -1 beyond the border. Patches may overlap
    and leave values out. ``weight`` (width, values) and ``bias``, in float64, turn a patch into a token.
    """

    weight: Tensor
    bias: Tensor | None
    index: Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, layer: nn.Module, shape: tuple[int, ...]) -> PatchGrid:
        """From a convolution; refuses any other layer, and padding other than zeros."""
        if not isinstance(layer, nn.Conv1d | nn.Conv2d):
            raise Inapplicable(
                f"the patch embedding is neither a convolution nor a linear layer: it is a {type(layer).__name__}"
            )
        if layer.padding_mode != "zeros" or layer.padding == "same":
            raise Inapplicable("the patch embedding is not a convolution over patches of the image with zero padding")
        flat = (1,) * (2 - len(layer.kernel_size))  # a series is an image one pixel high
        padding = (0, 0) if isinstance(layer.padding, str) else (*(0 for _ in flat), *layer.padding)
        how: dict[str, Any] = {
            "dilation": (*flat, *layer.dilation),
            "padding": padding,
            "stride": (*flat, *layer.stride),
        }
        numbers = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)  # padding adds zeros
        image = numbers.reshape(1, shape[0], *flat, *shape[1:])
        index = F.unfold(image, (*flat, *layer.kernel_size), **how)[0].T.long() - 1
        return cls(_dense(layer), _float64(layer.bias), index, shape)

    @classmethod
    def of_linear(cls, layer: nn.Linear, index: Tensor, shape: tuple[int, ...]) -> PatchGrid:
        """From a linear layer that reads the values ``index`` of the image."""
        return cls(layer.weight.detach().double().cpu(), _float64(layer.bias), index, shape)

    def cut(self, image: Tensor) -> Tensor:
        """One image (1, C, H, W) as (patches, values); cells beyond its border are zero."""
        return F.pad(image.flatten(), (0, 1))[self.index]  # the last value, at -1, is for the border

    def embed(self, image: Tensor) -> Tensor:
        """The tokens (patches, width) of one image, without positions, in float64."""
        return F.linear(self.cut(image.double().cpu()), self.weight, self.bias)

    def assemble(self, patches: Tensor) -> Tensor:
        """The image (C, H, W) of patches (patches, values): the mean where they overlap, zero where there are none."""
        return self._fold(patches) / self._coverage.clamp_min(1)

    def parts_image(self) -> bool:
        """Whether every cell of a patch is a value of the image, and no value is in two."""
        return bool((self.index >= 0).all()) and len(self.index.unique()) == self.index.numel()

    def unseen(self) -> int:
        """The number of image values in no patch."""
        return int((self._coverage == 0).sum())

    @cached_property
    def _coverage(self) -> Tensor:
        return self._fold(torch.ones(self.index.shape, dtype=torch.float64))

    def _fold(self, patches: Tensor) -> Tensor:
        inner = self.index >= 0
        flat = patches.new_zeros(math.prod(self.shape)).index_add_(0, self.index[inner], patches[inner])
        return flat.reshape(self.shape)


def _dense(conv: nn.Conv1d | nn.Conv2d) -> Tensor:
    """Weight (width, values) of a convolution. With groups, channels that an output does not read have weight zero."""
    own = conv.weight.detach().double().cpu()
    groups, (outputs, inputs) = conv.groups, own.shape[:2]
    dense = own.new_zeros(outputs, groups * inputs, *own.shape[2:])
    for g in range(groups):
        rows = slice(g * outputs // groups, (g + 1) * outputs // groups)
        dense[rows, g * inputs : (g + 1) * inputs] = own[rows]
    return dense.flatten(1)


def _float64(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.detach().double().cpu()


@dataclass(frozen=True, eq=False)
class Box:
    """All valid images, cut into patches, are within ``radius`` (Frobenius) of the grey ``middle`` (patches, values).

    ``tokens`` (patches, width) are the tokens of the middle. A value has a range of ``span`` in root mean square, and at least
    ``narrowest``, in model space; ``pixels`` of them are in a patch.
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
        return cls(
            middle=grid.cut(grey),
            tokens=grid.embed(grey),
            radius=float((grid.cut(high) - grid.cut(low)).norm()) / 2,
            span=float((high - low).square().mean().sqrt()),
            narrowest=float((high - low).min()),
            pixels=grey.numel() - grid.unseen(),
        )


def patch_grid(victim: Victim, name: str, *, seed: int) -> PatchGrid:
    """The patches of the layer ``name``: a convolution on the unchanged image, or a linear layer that reads its values in any order.
    Others are refused with the reason."""
    layer, shape = victim.model.get_submodule(name), victim.space.shape
    if isinstance(layer, nn.Linear):
        return PatchGrid.of_linear(layer, pixel_order(victim, name, seed=seed), shape)
    grid = PatchGrid.of(layer, shape)
    probe = _noise(victim, seed)
    entered = _first_input(victim, name, probe, seed=seed)
    if entered is None or entered.shape != probe.shape or not _same(entered, probe):
        raise Inapplicable("the patch embedding does not read the model's input: something changes it first")
    return grid


def pixel_order(victim: Victim, name: str, *, seed: int) -> Tensor:
    """Index in the flat image of each entry of the linear layer's input, (patches, values).

    At each value, image k of the adversary holds bit k of that value's index, so log₂ of their number of images is enough, even in
    half precision. Noise then verifies that the entries are the values themselves.
    """
    shape = victim.space.shape
    numbers = torch.arange(math.prod(shape)).reshape(1, *shape)
    index: Tensor | None = None
    for bit in range(max(1, int(numbers.max()).bit_length())):
        digits = numbers.bitwise_right_shift(bit).bitwise_and(1)
        read = _first_input(victim, name, digits.to(victim.device, victim.dtype), seed=seed)
        if read is None:
            raise Inapplicable(f"the patch embedding {name} is not called, so its input is unknown")
        found = (read.flatten(0, -2) > 0.5).long().cpu() << bit
        index = found if index is None else index + found
    assert index is not None
    probe = _noise(victim, seed)
    read = _first_input(victim, name, probe, seed=seed)
    known = index.max() < numbers.numel()
    if read is None or not known or not _same(read.flatten(0, -2).cpu(), probe.cpu().flatten()[index]):
        raise Inapplicable(
            f"the patch embedding {name}, a linear layer, does not read single values of the model's input: something changes "
            "them first, such as a normalisation or dropout"
        )
    return index


def _noise(victim: Victim, seed: int) -> Tensor:
    return victim.to_input(victim.space.start(1, torch.Generator().manual_seed(seed)))


def _first_input(victim: Victim, name: str, x: Tensor, *, seed: int) -> Tensor | None:
    """The layer's input at its first call; None if it is not called."""
    return inputs_of(victim, (name,), x, seed=seed).get(name)


def _same(read: Tensor, values: Tensor) -> bool:
    """Whether values were only moved; autocast may round them."""
    return torch.allclose(read.double(), values.double(), rtol=1e-2, atol=1e-4)
