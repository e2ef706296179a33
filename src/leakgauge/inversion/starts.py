"""Where the search begins. All starts but ``NearTruth`` and ``Revealed`` know nothing about the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakgauge.core import Observation, Space
from leakgauge.errors import BadInput, Inapplicable


class Start(Protocol):
    """``rows`` batches of ``size`` samples in model space: (rows, size, *shape), on the CPU."""

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class FromSpace:
    """The space's own start; for pixels, N(0, 1) in model space."""

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        return space.start(rows * size, rng).unflatten(0, (rows, size))


@dataclass(frozen=True)
class Normal:
    """N(0, scale²) in model space."""

    scale: float = 1.0

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        return self.scale * torch.randn(rows, size, *space.shape, generator=rng)


@dataclass(frozen=True)
class Uniform:
    """Image values drawn from [0, 1)."""

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        return space.encode(torch.rand(rows, size, *space.shape, generator=rng))


@dataclass(frozen=True)
class Constant:
    """One image value everywhere: 0 is black, 1 is white. All restarts are then equal."""

    value: float = 0.5

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        return space.encode(torch.full((rows, size, *space.shape), self.value))


@dataclass(frozen=True)
class Given:
    """The adversary's own picture, plus N(0, noise²): one sample, one for each of the batch, or a batch for each restart (model space)."""

    image: Tensor
    noise: float = 0.0

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        fitting = (tuple(space.shape), (size, *space.shape), (rows, size, *space.shape))
        if tuple(self.image.shape) not in fitting:
            raise BadInput(f"Given needs a picture of shape {space.shape}, got {tuple(self.image.shape)}")
        noise = self.noise * torch.randn(rows, size, *space.shape, generator=rng)
        return self.image.cpu() + noise


@dataclass(frozen=True)
class NearTruth:
    """The noisy copy of the target revealed with ``NoisyCopy(p)``: a diagnostic, never a deployable attack."""

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        if seen.near is None:
            raise Inapplicable("no noisy copy of the target was revealed; share with reveal=(Size(), NoisyCopy(p))")
        return seen.near.detach().cpu().expand(rows, *seen.near.shape).clone()


@dataclass(frozen=True)
class Revealed:
    """The noisy copy of the target if one was revealed (a diagnostic), else the space's own start."""

    def __call__(self, space: Space, seen: Observation, rows: int, size: int, *, rng: torch.Generator) -> Tensor:
        start = FromSpace() if seen.near is None else NearTruth()
        return start(space, seen, rows, size, rng=rng)
