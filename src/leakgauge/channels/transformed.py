"""Automatic transformation search: the gradient of transformed images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from leakgauge.channels.gradient import Gradient, gradient
from leakgauge.core import Channel, Defense, Pixels, Signal, Targets, Victim
from leakgauge.core.examples import example
from leakgauge.errors import BadInput, Inapplicable
from leakgauge.errors.checked import checked


@example("mlp", rotate=20)
@example("cnn", shear=0.3, shift=0.1, invert=True)
@checked
@dataclass(frozen=True)
class Transformed:
    """∂/∂θ loss(f(T(x)), y), where T is a policy of transformations that a client trains with: ATS.

    T turns by ``rotate`` degrees, shears by ``shear``, shifts to the right and down by the share ``shift`` of the side (pixels from
    outside repeat the border), and inverts the colours with ``invert``. An adversary who does not know T finds T(x), which a person may
    recognise and a pixel score may not. An adversary who does replays T: the policy is found on public models and used by all clients.

    Deviations: the paper searches for the policy among fifty operations of an image library and may draw one of several for each image;
    this is one policy that is given.

    Ref: Gao et al. 2021, privacy-preserving collaborative learning — automatic transformation search
    Ref: Balunović et al. 2022, breaking existing defenses — the adversary knows the defense mechanism
    """

    rotate: float = 25.0
    shear: float = 0.2
    shift: float = 0.1
    invert: bool = False

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, (self.rotate, self.shear, self.shift))) or abs(self.shift) > 1:
            raise BadInput(f"Transformed needs finite numbers, and a shift of at most 1, got {self}")

    def __call__(self, victim: Victim, x: Tensor, y: Targets, /) -> Signal:
        return gradient(victim, self.images(victim, x), y, parameters=victim.parameters(), buffers=victim.buffers())

    def images(self, victim: Victim, x: Tensor) -> Tensor:
        """T(x), in model space."""
        space = victim.space
        if not isinstance(space, Pixels):
            raise Inapplicable("Transformed turns and shifts images, and the victim does not take images")
        angle = math.radians(self.rotate)
        turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        linear = turn @ torch.tensor([[1.0, self.shear], [0.0, 1.0]])
        moved = torch.cat([linear, torch.full((2, 1), -2 * self.shift)], 1).to(x)
        grid = F.affine_grid(moved.expand(len(x), 2, 3), list(x.shape), align_corners=False)
        made = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        if not self.invert:
            return made
        black, white = (space.encode(torch.full((1, *space.shape), value)).to(x) for value in (0.0, 1.0))
        return black + white - made

    def unprotected(self) -> Gradient:
        """The gradient of the images themselves."""
        return Gradient()

    def known(self, victim: Victim, sent: Signal, /) -> tuple[Channel, tuple[Defense, ...]]:
        """The same transformation."""
        return self, ()
