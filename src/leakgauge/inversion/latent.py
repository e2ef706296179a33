"""A solver that searches the images a generator can make, and then optionally the pixels nearby."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.errors import BadInput
from leakgauge.inversion.solvers import Descent, Mover, Moving, Rows

SPREAD = 0.1
"""Deviation of the initial latents: near the generator's mean, where every direction is still open."""


@dataclass(frozen=True)
class Latent:
    """``descent`` over latents z of the candidates x = generator(z), with ``weight`` · mean z² added to the objective.

    ``generator`` maps latents (N, ``size``) to images in [0, 1], (N, C, H, W). For images of its kind the latents are N(0, 1); the
    weight keeps them there. z starts near 0, different in each restart; the attack's start in pixels is not used. With ``pixels``,
    that descent continues in pixels from the last image. The objective without the weight decides which image is kept.

    Ref: Jeon et al. 2021, latent space search — argmin over z of d(∇loss(G(z)), g*) + λ·R(z)
    """

    generator: Callable[[Tensor], Tensor]
    size: int
    descent: Descent = field(default_factory=Descent)
    weight: float = 1e-4
    pixels: Descent | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise BadInput(f"a generator needs an integer number of latents of at least 1, got {self.size!r}")
        if not self.weight >= 0:
            raise BadInput(f"the weight of the latents must not be negative, got {self.weight!r}")

    @property
    def steps(self) -> int:
        return self.descent.steps + (0 if self.pixels is None else self.pixels.steps)

    @property
    def together(self) -> bool:
        return True

    def begin(self, given: Moving, /) -> Mover:
        return _LatentMover(self, given)


class _LatentMover:
    def __init__(self, of: Latent, given: Moving) -> None:
        self.of, self.given, x = of, given, given.x
        self.made = x.detach().clone()
        z = given.draws.normal(0, x.new_empty(*x.shape[:2], of.size)).mul_(SPREAD).requires_grad_()
        within = replace(of.descent, project=False)  # latents are unbounded
        self.mover = within.begin(replace(given, x=z, losses=self._of_latents))

    @property
    def note(self) -> str:
        return self.mover.note

    def _of_latents(self, z: Tensor, logits: Tensor | None, rows: Rows) -> Tensor:
        x = self.given.space.encode(self.of.generator(z.flatten(0, 1)).unflatten(0, z.shape[:2]))
        self.made.copy_(x.detach())
        return self.given.losses(x, logits, rows) + self.of.weight * z.square().flatten(1).mean(1)

    def __call__(self, number: int, /) -> None:
        if number < self.of.descent.steps:
            self.mover(number)
            return
        assert self.of.pixels is not None
        if number == self.of.descent.steps:
            with torch.no_grad():
                self.mover.judge()  # the last latents have not been judged yet
            self.mover = self.of.pixels.begin(replace(self.given, x=self.made.requires_grad_()))
        self.mover(number - self.of.descent.steps)

    def judge(self) -> None:
        self.mover.judge()

    def keep(self, count: int, best: Tensor) -> None:
        raise BadInput("successive halving works on pixels, not on latents; use it with Descent")
