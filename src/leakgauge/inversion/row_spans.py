"""The span of a linear layer's inputs, read off the gradient of its weight, and whether a vector is in it up to rounding or noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

EDGE = 1.0
"""A singular value counts if it is this many times as large as those of white noise."""
SLACK = 4.0
"""A vector is in the span if it is outside by at most this many times what rounding or noise is expected to do."""
SCREEN = 16
"""Directions outside the span on which vectors are tested first."""
COARSE = 8.0
"""Noise this many times as large as float rounding is called noise: what is found by it is a guess."""


@dataclass(frozen=True, eq=False)
class RowSpan:
    """Row space of gradients G = Σ_p δ_p z_pᵀ of layers that read the same inputs z_p, as G / σ = U S Vᵀ.

    ``basis`` (width, width) is V and ``values`` (width,) is S, in units of the noise σ of an entry. The first ``rank`` values are above
    the largest that white noise of ``rows`` × width has, √rows + √width. ``coarse``: σ is above what rounding explains.
    """

    basis: Tensor
    values: Tensor
    rank: int
    rows: int
    rounding: float
    coarse: bool

    @property
    def width(self) -> int:
        return len(self.values)

    @property
    def free(self) -> int:
        """Directions outside the span, which tell inputs from other vectors."""
        return self.width - self.rank

    @property
    def saturated(self) -> bool:
        """Whether there may be more inputs than the gradient has directions: then even true inputs are outside of its span."""
        return self.rank >= min(self.rows, self.width)

    def outside(self, vectors: Tensor) -> Tensor:
        """How far each vector (n, width) is outside the span, as a multiple of what is expected of a true input; in the span if ≤ 1.

            ‖z⊥‖² / (SLACK² · ((width − rank) Σ_{i ≤ rank} (v_i·z)² / s_i²  +  ε² ‖z‖²))

        A true input is z = Gᵀc, with the shortest c = Σ u_i (v_i·z) / s_i. Noise E of unit size in G moves it out of the row space by
        Eᵀc, which has the squared length ‖c‖² per direction. ε is the rounding of z itself.
        """
        inside = (vectors @ self.basis).square()
        size = vectors.square().sum(1)
        expected = self.free * (inside[:, : self.rank] / self.values[: self.rank].square()).sum(1)
        expected = SLACK**2 * (expected + self.rounding**2 * size)
        return inside[:, self.rank :].sum(1) / expected.clamp_min(torch.finfo(size.dtype).tiny)

    def holds(self, vectors: Tensor) -> Tensor:
        """Which vectors (n, width) are in the span; most others are ruled out by a few directions outside of it."""
        few = self.basis[:, self.rank : self.rank + SCREEN]
        size = vectors.square().sum(1)
        loosest = self.free / float(self.values[self.rank - 1]) ** 2 if self.rank else 0.0
        rows = ((vectors @ few).square().sum(1) <= SLACK**2 * (loosest + self.rounding**2) * size).nonzero().flatten()
        held = torch.zeros(len(vectors), dtype=torch.bool, device=vectors.device)
        held[rows] = self.outside(vectors[rows]) <= 1
        return held

    def distance(self, vectors: Tensor) -> Tensor:
        """Smooth form, in [0, 1]: Σ_i (v_i·z)² min(1, e² / s_i²) / ‖z‖², where e is the largest singular value of the noise.

        A direction counts by how much of it noise could have made, so no rank has to be chosen. Small for inputs, even where noise
        hides some of their directions.
        """
        edge = math.sqrt(self.rows) + math.sqrt(self.width)
        weights = (edge / self.values.clamp_min(edge)).square()
        return (vectors @ self.basis).square() @ weights / vectors.square().sum(1).clamp_min(1e-300)

    def chance(self, vectors: Tensor) -> float:
        """Probability that a random direction is as near to the span as the loosest of ``vectors`` may be."""
        from scipy.special import betainc  # here, because it takes longer to import than this whole package

        if self.rank == 0 or self.free == 0 or len(vectors) == 0:
            return 1.0
        inside = (vectors @ self.basis[:, : self.rank]).square() / self.values[: self.rank].square()
        share = SLACK**2 * (self.free * inside.sum(1) / vectors.square().sum(1) + self.rounding**2)
        return float(betainc(self.free / 2, self.rank / 2, min(1.0, float(share.max()))))


def row_span(gradients: Sequence[Tensor], *, inputs: int, floors: Sequence[float] | None = None) -> RowSpan | None:
    """Span of the rows of ``gradients``, each (outputs, width), of at most ``inputs`` inputs; None if all are zero.

    Each gradient is divided by the noise σ of its entries: float rounding of a sum, ε ‖G‖ / √(outputs · width), the given ``floors``, or
    what the singular values beyond the first ``inputs`` hold, which is all noise, whichever is largest.
    """
    scaled, coarse = [], False
    for k, gradient in enumerate(gradients):
        g = gradient.double()
        if not bool(g.any()):
            continue
        eps = torch.finfo(gradient.dtype).eps
        rounding = eps * float(g.norm()) / math.sqrt(g.numel())
        sigma = max(rounding, floors[k] if floors is not None else 0.0)
        beyond = torch.linalg.svdvals(g)[inputs:]
        if len(beyond):
            spread = float(beyond.square().sum()) / ((g.shape[0] - inputs) * (g.shape[1] - inputs))
            coarse |= math.sqrt(spread) > COARSE * sigma
            sigma = max(sigma, math.sqrt(spread))
        scaled.append(g / sigma)
    if not scaled:
        return None
    stacked = torch.cat(scaled)
    rows, width = stacked.shape
    _, s, v = torch.linalg.svd(stacked, full_matrices=rows < width)
    values = torch.cat([s, s.new_zeros(width - len(s))])
    rank = int((values > EDGE * (math.sqrt(rows) + math.sqrt(width))).sum())
    eps = max(torch.finfo(g.dtype).eps for g in gradients)
    return RowSpan(v.T.contiguous(), values, rank, rows, eps, coarse)
