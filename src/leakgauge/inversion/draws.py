"""Random numbers for a search that depend on the restart only, not on which rows run together."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Draws:
    """``which`` (rows,) gives, for each row, its restart number out of ``restarts`` per observation.

    Restart r gets the same numbers whether it runs alone, with other observations or in a smaller chunk.
    """

    seed: int
    restarts: int
    which: Tensor

    @classmethod
    def of(cls, restarts: int, *, observations: int = 1, seed: int = 0) -> Draws:
        return cls(seed, restarts, torch.arange(restarts).repeat(observations))

    def take(self, rows: slice | Tensor) -> Draws:
        return replace(self, which=self.which[rows.cpu() if isinstance(rows, Tensor) else rows])

    def observation(self) -> Tensor:
        """For each row, in their first order, the number of its observation among these rows: restarts count up within one.

        >>> Draws.of(2, observations=2).observation().tolist()
        [0, 0, 1, 1]
        """
        begins = torch.ones_like(self.which)
        begins[1:] = (self.which[1:] <= self.which[:-1]).long()
        return begins.cumsum(0) - 1

    def normal(self, step: int, like: Tensor) -> Tensor:
        """N(0, 1) for every row at this step, in the shape of ``like`` (rows, ...)."""
        rng = torch.Generator(like.device).manual_seed((self.seed * 1_000_003 + step + 1) % 2**63)
        every = torch.randn(self.restarts, *like.shape[1:], generator=rng, device=like.device, dtype=like.dtype)
        return every[self.which.to(like.device)]
