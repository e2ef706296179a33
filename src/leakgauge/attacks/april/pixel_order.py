"""Which values of the image a model's patch embedding reads, found by images of the adversary's own."""

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
    """The patches of the layer ``name``: a convolution that reads the image as it is, or a linear layer that reads its values
    in any order. Others are refused with the reason."""
    layer, shape = victim.model.get_submodule(name), victim.space.shape
    if isinstance(layer, nn.Linear):
        return PatchGrid.of_linear(layer, pixel_order(victim, name, seed=seed), shape)
    grid = PatchGrid.of(layer, shape)
    probe = _noise(victim, seed)
    entered = _entered(victim, name, probe, seed=seed)
    if entered is None or entered.shape != probe.shape or not _same(entered, probe):
        raise Inapplicable(
            "the patch embedding does not read the image as the model gets it: something changes it before"
        )
    return grid


def pixel_order(victim: Victim, name: str, *, seed: int) -> Tensor:
    """Which value of the flat image each entry of the linear layer's input is, (patches, values).

    Image k of the adversary's holds at each value bit k of that value's number, so that log₂ of their count are enough and
    half precision does as well. That the entries are the values themselves is then tried on noise.
    """
    shape = victim.space.shape
    numbers = torch.arange(math.prod(shape)).reshape(1, *shape)
    index: Tensor | None = None
    for bit in range(max(1, int(numbers.max()).bit_length())):
        digits = numbers.bitwise_right_shift(bit).bitwise_and(1)
        read = _entered(victim, name, digits.to(victim.device, victim.dtype), seed=seed)
        if read is None:
            raise Inapplicable(f"the patch embedding {name} is not called, so what it reads is not known")
        found = (read.flatten(0, -2) > 0.5).long().cpu() << bit
        index = found if index is None else index + found
    assert index is not None
    probe = _noise(victim, seed)
    read = _entered(victim, name, probe, seed=seed)
    known = index.max() < numbers.numel()
    if read is None or not known or not _same(read.flatten(0, -2).cpu(), probe.cpu().flatten()[index]):
        raise Inapplicable(
            f"the patch embedding {name}, a linear layer, does not read single values of the image as the model gets it: "
            "something, such as a normalisation or dropout, changes them before"
        )
    return index


def _noise(victim: Victim, seed: int) -> Tensor:
    return victim.to_input(victim.space.start(1, torch.Generator().manual_seed(seed)))


def _entered(victim: Victim, name: str, x: Tensor, *, seed: int) -> Tensor | None:
    """What the layer reads when it is first called, None if it is not."""
    with torch.no_grad(), private_randomness(seed, victim.device), capturing(victim.model, (name,)) as seen:
        victim(x)
    return seen.get(name)


def _same(read: Tensor, values: Tensor) -> bool:
    """Whether values were moved and no more; autocast may round them."""
    return torch.allclose(read.double(), values.double(), rtol=1e-2, atol=1e-4)
