"""Finds which values of the image a model's patch embedding reads, with the adversary's own images."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from leakgauge.attacks.april.patches import PatchGrid
from leakgauge.core import Victim
from leakgauge.core.randomness import private_randomness
from leakgauge.engine.reference import capturing
from leakgauge.errors import Inapplicable


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
    with torch.no_grad(), private_randomness(seed, victim.device), capturing(victim.model, (name,)) as seen:
        victim(x)
    return seen.get(name)


def _same(read: Tensor, values: Tensor) -> bool:
    """Whether values were only moved; autocast may round them."""
    return torch.allclose(read.double(), values.double(), rtol=1e-2, atol=1e-4)
